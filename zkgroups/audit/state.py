"""The two small files of an audit: its description, and its last finished batch."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Final, TypeGuard

from ..core.ensemble_position import EnsemblePosition
from ..core.layouts.legacy import LEGACY
from ..core.znodes.names import is_group
from ..storage.saved_position import FIELDS, decode_position, encode_position
from .followed_ensemble import FollowedEnsemble

_BATCHES: Final = 10**12
"""The limit of the numbers of batches, which have twelve digits in names of files."""


@dataclass(frozen=True, slots=True)
class AuditDescription:
    """What an audit records.

    - `groups`, `topics`: the expressions that select them; None for all.
    - `ensemble`: the ZooKeeper that it follows; None if it was killed before it connected.
    - `first_batch`: the first batch of this ZooKeeper. Earlier ones are of the ZooKeeper before.
    - `layout`: where the offsets are, as text.
    """

    groups: str | None
    topics: str | None
    ensemble: FollowedEnsemble | None = None
    first_batch: int = 0
    layout: str = LEGACY.text

    @property
    def selection(self) -> str:
        """The groups, topics and layout, for messages."""
        layout = "" if self.layout == LEGACY.text else f", layout {self.layout}"
        return f"groups {self.groups or '.*'}, topics {self.topics or '.*'}{layout}"

    def following(self, ensemble: FollowedEnsemble, *, first_batch: int | None = None) -> AuditDescription:
        """Return the description with another ensemble."""
        return replace(self, ensemble=ensemble, first_batch=self.first_batch if first_batch is None else first_batch)

    def to_json(self) -> str:
        fields: dict[str, Any] = {"groups": self.groups, "topics": self.topics, "layout": self.layout}
        fields["first_batch"] = self.first_batch
        if self.ensemble is not None:
            fields |= {"cluster": self.ensemble.cluster} | encode_position(self.ensemble.position)
        return json.dumps(fields)

    @classmethod
    def from_json(cls, text: str) -> AuditDescription | None:
        """Decode a description; return None for another text.

        >>> AuditDescription.from_json(AuditDescription("bill.*", None).to_json())
        AuditDescription(groups='bill.*', topics=None, ensemble=None, first_batch=0, layout='legacy')
        """
        fields = _object(text)
        groups, topics, first = fields.get("groups", 0), fields.get("topics", 0), fields.get("first_batch")
        layout = fields.get("layout", LEGACY.text)
        if not (isinstance(groups, str | None) and isinstance(topics, str | None) and isinstance(layout, str)):
            return None
        if not _is_number(first, _BATCHES):
            return None
        if "cluster" not in fields:
            return cls(groups, topics, first_batch=first, layout=layout)
        cluster, position = fields["cluster"], _position(fields)
        if not isinstance(cluster, str) or position is None:
            return None
        return cls(groups, topics, FollowedEnsemble(cluster, position), first, layout)


@dataclass(frozen=True, slots=True)
class FinishedBatch:
    """A batch that is recorded completely.

    - `number`: its number.
    - `position`: the position of ZooKeeper when the batch began. The next batch starts there.
    - `read_ms`: the time when it began, by the clock of the reader. Later commits are unknown.
    - `forbidden`: the groups with forbidden nodes. The next batch reads all of their offsets.
    """

    number: int
    position: EnsemblePosition
    read_ms: int
    forbidden: tuple[str, ...] = ()

    def to_json(self) -> str:
        fields = {"batch": self.number, "read_ms": self.read_ms, "forbidden": self.forbidden}
        return json.dumps(fields | encode_position(self.position))

    @classmethod
    def from_json(cls, text: str) -> FinishedBatch | None:
        """Decode a batch; return None for another text.

        >>> batch = FinishedBatch(3, EnsemblePosition(100, 7, 1_000), 1_700_000_000_000, ("billing",))
        >>> FinishedBatch.from_json(batch.to_json()) == batch, FinishedBatch.from_json("{}")
        (True, None)
        """
        fields = _object(text)
        number, read_ms, forbidden = (fields.get(name) for name in ("batch", "read_ms", "forbidden"))
        position = _position(fields)
        if position is None or not (_is_number(number, _BATCHES) and _is_number(read_ms) and _are_groups(forbidden)):
            return None
        return cls(number, position, read_ms, tuple(forbidden))


def _object(text: str) -> dict[str, Any]:
    """Decode a JSON object; return an empty one for another text."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _position(fields: dict[str, Any]) -> EnsemblePosition | None:
    return decode_position(fields) if all(_is_number(fields.get(name)) for name in FIELDS) else None


def _is_number(value: object, limit: int = 2**63) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < limit


def _are_groups(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(group, str) and is_group(group) for group in value)
