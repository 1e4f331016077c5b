"""Groups of which nothing is to be decided: all offsets are to be written, and nothing was on the target before.

Those are nearly all. What is true of such a group is seen by comparing whole columns, in a hundredth of the time that
it takes to look at its rows. Each check here says that `apply_rules.py` has nothing against a group, or `comparison.py`
finds all of it equal; where it cannot tell, the rows are looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import le
from typing import Any, Final, Generic, TypeVar

from ..kafka_values import NativeOffset
from ..znodes.topic_partition import TopicPartition
from .apply_rules import Place, SourceSeen, TargetSeen, Znode
from .lazy_rows import Slice
from .plan_rows import PlanRow
from .rules import Action, Reason

K = TypeVar("K")
V = TypeVar("V")


class Shape:
    """The partitions that a group has offsets of; thousands of groups share one."""

    def __init__(self, topics: tuple[str, ...], partitions: tuple[int, ...]) -> None:
        self.topics, self.partitions = list(topics), list(partitions)
        self.places: tuple[tuple[str, int], ...] = tuple(zip(topics, partitions, strict=True))

    @cached_property
    def ats(self) -> tuple[TopicPartition, ...]:
        """As they are called elsewhere."""
        return tuple(TopicPartition.checked(*place) for place in self.places)

    def __len__(self) -> int:
        return len(self.places)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Shape) and self.places == other.places)

    def __hash__(self) -> int:
        return hash(self.places)


shape_of = lru_cache(maxsize=256)(Shape)


@dataclass(frozen=True, slots=True)
class Plain:
    """Such a group, as it is planned."""

    shape: Shape
    zxids: list[int]
    planned: list[int]
    topic_ids: list[str | None]


class Group(Slice[PlanRow]):
    """The rows of one target."""

    @cached_property
    def plain(self) -> Plain | None:
        """The group as it is planned, if it is plain: by what `is_plain` says of each row, column by column."""
        count = len(self)
        if (
            self.column("group").count(self.first("group")) < count
            or set(self.column("action")) != {Action.COMMIT}
            or not _PLAIN.issuperset(self.column("reason"))
            or any(None in self.column(name) for name in _KNOWN)
            or self.column("before").count(None) < count
            or any(self.column("obstacles"))
        ):
            return None
        shape = shape_of(tuple(self.column("topic")), tuple(self.column("partition")))
        return Plain(shape, self.column("zxid"), self.column("planned"), self.column("topic_id"))


def plain_of(rows: Sequence[PlanRow]) -> Plain | None:
    """The group that these rows are, if it is plain."""
    return rows.plain if isinstance(rows, Group) else None


def of_all(rows: Sequence[PlanRow], name: str) -> Any:
    """A field that is the same in all rows of a group."""
    return rows.first(name) if isinstance(rows, Group) else getattr(rows[0], name)


_PLAIN: Final = frozenset({Reason.AS_IT_IS, Reason.CLAMPED})
_KNOWN: Final = ("topic", "partition", "zxid", "log_end", "planned")


def is_plain(row: PlanRow) -> bool:
    """Whether a group may be plain as far as one of its rows tells."""
    return (
        row.action is Action.COMMIT
        and row.reason in _PLAIN
        and None not in (row.topic, row.partition, row.zxid, row.log_end, row.planned)
        and row.before is None
        and not row.obstacles
    )


class Columns(Mapping[K, V], Generic[K, V]):
    """Something of each partition of a shape; each value is made when somebody looks at it."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    @cached_property
    def _values(self) -> dict[K, V]:
        return dict(self._made())

    def _made(self) -> Iterator[tuple[K, V]]:
        raise NotImplementedError

    def __getitem__(self, key: K) -> V:
        return self._values[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        return repr(self._values)


class Znodes(Columns[Place, Znode]):
    """Offset nodes that all hold an offset."""

    def __init__(self, shape: Shape, zxids: list[int], offsets: list[int]) -> None:
        super().__init__(shape)
        self.zxids, self.offsets = zxids, offsets

    def _made(self) -> Iterator[tuple[Place, Znode]]:
        return zip(self.shape.places, map(Znode, self.zxids, self.offsets), strict=True)


class Natives(Columns[TopicPartition, NativeOffset]):
    """What a group of Kafka's own has committed, without notes and leader epochs."""

    def __init__(self, group: str, shape: Shape, offsets: list[int]) -> None:
        super().__init__(shape)
        self._group, self.offsets = group, offsets

    def _made(self) -> Iterator[tuple[TopicPartition, NativeOffset]]:
        return (
            (at, NativeOffset(self._group, at, offset)) for at, offset in zip(self.shape.ats, self.offsets, strict=True)
        )


class Numbers(Columns[TopicPartition, int]):
    """Offsets to be committed."""

    def __init__(self, shape: Shape, offsets: list[int]) -> None:
        super().__init__(shape)
        self.offsets = offsets

    def _made(self) -> Iterator[tuple[TopicPartition, int]]:
        return zip(self.shape.ats, self.offsets, strict=True)


# What is seen at once


def source_is_as_planned(plain: Plain, seen: SourceSeen) -> bool:
    """Whether `source_obstacles` has nothing to tell."""
    there = seen.offsets
    return (
        not seen.instances
        and not seen.unreadable
        and isinstance(there, Znodes)
        and there.shape == plain.shape
        and there.zxids == plain.zxids
    )


def target_is_untouched(seen: TargetSeen) -> bool:
    """Whether `target_obstacles` has nothing to tell of a plain group, and all of it is to be written."""
    return not seen.members and not seen.unreadable and not seen.committed


def has_all(seen: TargetSeen, offsets: Mapping[TopicPartition, int]) -> bool:
    """Whether `overwritten` has nothing to tell of a plain group to which these were written."""
    there = seen.committed
    return (
        not seen.unreadable
        and isinstance(there, Natives)
        and isinstance(offsets, Numbers)
        and there.shape == offsets.shape
        and there.offsets == offsets.offsets
    )


@dataclass(frozen=True, slots=True)
class Bounds:
    """For each partition of a shape: the range of its log, the zxid that created its topic, and the topic's id."""

    starts: list[int]
    ends: list[int]
    made: list[int]
    topic_ids: list[str | None]

    def have(self, plain: Plain) -> bool:
        """Whether `log_obstacles` has nothing to tell."""
        return (
            all(map(le, self.starts, plain.planned))
            and all(map(le, plain.planned, self.ends))
            and all(map(le, self.made, plain.zxids))
            and are_the_same(plain.topic_ids, self.topic_ids)
        )


def are_the_same(planned: list[str | None], now: list[str | None]) -> bool:
    """Whether each row still has the topic id of the plan. A missing id does not count as another one."""
    return planned == now or all(old is None or old == new for old, new in zip(planned, now, strict=True))
