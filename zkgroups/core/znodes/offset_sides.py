"""Where the offsets of a group are: in ZooKeeper, on the brokers, or on both sides."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Side(StrEnum):
    """A place for the members of a group, and for its committed offsets."""

    KAFKA = "kafka"
    ZOOKEEPER = "zookeeper"

    @property
    def shown(self) -> str:
        """The name in messages."""
        return "the brokers" if self is Side.KAFKA else "ZooKeeper"


@dataclass(frozen=True, slots=True)
class OffsetSides:
    """Where a member of a group in ZooKeeper commits its offsets, and where it reads them.

    - `truth`: the side that it reads, and commits to.
    - `both`: True if it also copies them to the other side.
    """

    truth: Side = Side.ZOOKEEPER
    both: bool = False

    def writes(self, side: Side) -> bool:
        """True if the member writes offsets to this side."""
        return self.both or side is self.truth

    def suits(self, other: OffsetSides) -> bool:
        """True if each of two members finds the offsets of the other.

        >>> zookeeper, kafka = OffsetSides(), OffsetSides(Side.KAFKA)
        >>> copies_to_kafka, copies_to_zookeeper = OffsetSides(both=True), OffsetSides(Side.KAFKA, both=True)
        >>> zookeeper.suits(copies_to_kafka), copies_to_kafka.suits(copies_to_zookeeper)
        (True, True)
        >>> zookeeper.suits(kafka), zookeeper.suits(copies_to_zookeeper)
        (False, False)
        """
        return self.writes(other.truth) and other.writes(self.truth)

    def __str__(self) -> str:
        return f"both, {self.truth} is the truth" if self.both else str(self.truth)


ONLY_ZOOKEEPER: Final = OffsetSides()
"""Where all clients but a `Consumer` with other options commit."""
