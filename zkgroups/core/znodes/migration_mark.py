"""The mark of a migration: a node in a group that says where it is moving, or has moved. Members of ours obey it.

    /consumers/<group>/migration    {"version":1,"plan":"p1","target":"billing","state":"moving","since":1795255543000}

Whoever commits to both stores at once would read twice, or skip: so nobody joins while it is there. Clients of other
kinds know nothing of it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from .values import MalformedNode

_HALVES = re.compile("[\ud800-\udfff]")
"""JSON may carry halves of characters, which cannot be written anywhere."""


class MarkState(StrEnum):
    """How far the migration of a group is."""

    MOVING = "moving"
    MOVED = "moved"


@dataclass(frozen=True, slots=True)
class Mark:
    """Which plan moves the group, what it is called there, and since when it is in that state."""

    group: str
    plan: str
    target: str
    state: MarkState
    since_ms: int

    @property
    def shown(self) -> str:
        """What has become of the group, for a message.

        >>> Mark("billing", "p1", "accounts", MarkState.MOVED, 0).shown
        "was moved to Kafka's own offsets as 'accounts', by plan p1"
        """
        verb = "was moved" if self.state is MarkState.MOVED else "is being moved"
        return f"{verb} to Kafka's own offsets as {self.target!r}, by plan {self.plan}"


def encode_mark(mark: Mark) -> bytes:
    """The bytes of a mark."""
    fields = {
        "version": 1,
        "plan": mark.plan,
        "target": mark.target,
        "state": mark.state.value,
        "since": mark.since_ms,
    }
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def decode_mark(path: str, group: str, data: bytes, *, version: int = 0) -> Mark | MalformedNode:
    """What a mark says; whatever cannot be read is a mark all the same, of somebody who is not known.

    >>> mark = Mark("billing", "p1", "billing", MarkState.MOVING, 7)
    >>> decode_mark("/m", "billing", encode_mark(mark)) == mark, decode_mark("/m", "billing", b"{}").reason
    (True, 'not the mark of a migration')
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
    return MalformedNode(path, data, "not the mark of a migration", version=version)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value or _HALVES.search(value):
        raise ValueError(value)
    return value


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(value)
    return value
