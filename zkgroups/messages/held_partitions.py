"""The partitions that a consumer holds, and where each of them goes on. Without threads and clients: pure logic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..core.znodes.topic_partition import TopicPartition
from .deliverer import Deliverer, Partitions


class HeldPartitions:
    """The partitions of the last generation, and how far the messages of each are finished.

    A partition is *gone* when it is revoked or lost. It stays gone until `settle`, also if the next generation has it
    again: the client must stop fetching it first.

    `automatic`: `finished` returns what the deliverer has finished. Otherwise it returns nothing.
    """

    def __init__(self, deliverer: Deliverer, *, automatic: bool) -> None:
        self.deliverer = deliverer
        self.of_generation: Partitions = frozenset()
        self.gone: set[TopicPartition] = set()
        self.seeks: dict[TopicPartition, int] = {}
        """Where to go on, as the user has asked."""
        self.resume_at: dict[TopicPartition, int] = {}
        """Where to go on after an error."""
        self.ends: set[TopicPartition] = set()
        """The partitions whose log ends after the last message that was received."""
        self._automatic = automatic
        self._starts: dict[TopicPartition, int] = {}

    @property
    def kept(self) -> Partitions:
        """The partitions that have not been revoked or lost."""
        return self.of_generation - self.gone

    # Generations

    def replace(self, held: Partitions) -> None:
        """Note the partitions of another generation."""
        self.gone |= self.of_generation - held
        self.deliverer.forget(self.gone)
        self.of_generation = held

    def revoke(self, partitions: Partitions) -> None:
        """Note that these partitions are about to be released."""
        self.gone |= partitions

    def lose(self, partitions: Partitions) -> None:
        """Note that these partitions are no longer held."""
        self.gone |= partitions
        self.deliverer.forget(partitions)

    def settle(self, left: Iterable[TopicPartition]) -> None:
        """Note that the client has stopped fetching these partitions, and all that are gone."""
        for at in left:
            self.seeks.pop(at, None)
            self.resume_at.pop(at, None)
        self.gone.clear()

    # Positions

    def begin(self, positions: Mapping[TopicPartition, int]) -> None:
        """Note that these partitions are fetched from these offsets on."""
        self.ends -= positions.keys()
        for at, position in positions.items():
            self.deliverer.assign(at, position)
            self._starts[at] = position

    def forget_position(self, at: TopicPartition) -> None:
        """Forget how far a partition is finished, before it begins elsewhere."""
        self.deliverer.forget([at])
        self.resume_at.pop(at, None)

    def stop_at_error(self, at: TopicPartition) -> None:
        """Note that a partition is not fetched for now. It goes on after the last message that was taken."""
        if (received := self.deliverer.received(at)) is not None:
            self.resume_at[at] = received

    def seek(self, at: TopicPartition, offset: int) -> None:
        """Hand out no more messages of a partition until the client has moved to another offset."""
        self.deliverer.revoke([at])
        self.seeks[at] = offset

    def take_seeks(self, fetched: Partitions) -> dict[TopicPartition, int]:
        """Return the seeks to carry out now. Those of partitions that stand still take effect when these go on."""
        seeks, self.seeks = self.seeks, {}
        standing = {at: offset for at, offset in seeks.items() if at in self.of_generation - fetched}
        self.begin(standing)
        self.resume_at |= standing
        return seeks

    def finished(self) -> dict[TopicPartition, int]:
        """Return the offsets to commit without being asked."""
        return self.moved(self.positions()) if self._automatic else {}

    def positions(self) -> Mapping[TopicPartition, int]:
        """Return the offset of the first unfinished message of each partition."""
        return self.deliverer.positions(self.of_generation)

    def moved(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Leave out partitions without a finished message. Their committed offset, if any, stays."""
        return {at: position for at, position in positions.items() if position != self._starts.get(at)}

    def deliver_to(self, deliverer: Deliverer, *, automatic: bool) -> None:
        """Let another deliverer have the messages. Partitions begin again where the first one has finished."""
        self.seeks = {**self.positions(), **self.seeks}
        self.deliverer.forget(self.of_generation)
        self.deliverer = deliverer
        self._automatic = automatic
