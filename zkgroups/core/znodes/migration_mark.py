"""The migration mark: a node in a group that is being migrated to Kafka-native offsets, or was.

    /consumers/<group>/migration    {"version":1,"plan":"p1","target":"billing","state":"moving","since":1795255543000}

zkgroups members do not join a marked group: a group with members on both sides would read messages twice or skip
them. Other clients ignore the mark.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from ..times import from_ms
from .values import MalformedNode

_HALVES = re.compile("[\ud800-\udfff]")
"""JSON can contain unpaired surrogates, which cannot be encoded."""


class MarkState(StrEnum):
    """The progress of a group's migration."""

    MOVING = "moving"
    MOVED = "moved"


@dataclass(frozen=True, slots=True)
class Mark:
    """The plan that migrates a group, the name of the target group, and the state of the migration."""

    group: str
    plan: str
    target: str
    state: MarkState
    since_ms: int

    @property
    def since(self) -> datetime | None:
        """When the migration entered this state."""
        return from_ms(self.since_ms)

    @property
    def shown(self) -> str:
        """Describe the migration for a message.

        >>> Mark("billing", "p1", "accounts", MarkState.MOVED, 0).shown
        "was moved to Kafka's own offsets as 'accounts', by plan p1"
        """
        verb = "was moved" if self.state is MarkState.MOVED else "is being moved"
        return f"{verb} to Kafka's own offsets as {self.target!r}, by plan {self.plan}"


def encode_mark(mark: Mark) -> bytes:
    """Return the data of the mark's node, as JSON."""
    fields = {
        "version": 1,
        "plan": mark.plan,
        "target": mark.target,
        "state": mark.state.value,
        "since": mark.since_ms,
    }
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def decode_mark(path: str, group: str, data: bytes, *, version: int = 0) -> Mark | MalformedNode:
    """Decode a mark. A malformed mark also keeps members out: its plan is unknown.

    >>> mark = Mark("billing", "p1", "billing", MarkState.MOVING, 7)
    >>> decode_mark("/m", "billing", encode_mark(mark)) == mark, decode_mark("/m", "billing", b"{}").reason
    (True, 'not a migration mark')
    """
    try:
        fields: Any = json.loads(data)
        found = Mark(
            group, _text(fields["plan"]), _text(fields["target"]), MarkState(fields["state"]), _number(fields["since"])
        )
        if fields["version"] == 1:
            return found
    except (ValueError, TypeError, LookupError, RecursionError):
        pass
    return MalformedNode(path, data, "not a migration mark", version=version)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value or _HALVES.search(value):
        raise ValueError(value)
    return value


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(value)
    return value
