"""Topics that were deleted or recreated while a member held partitions of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..core.znodes.paths import broker_topic
from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import UnreadableNode

Partitions = frozenset[TopicPartition]


class RecreatedTopics:
    """Detects topics that were deleted, or recreated under the same name, while the member held partitions of them.

    Such partitions have outlived their topic. The member releases them, and claims them again if the topic was
    recreated. Until then it commits nothing for them: the offsets would be taken for those of the new topic. It also
    claims no other partition of that topic: the partitions that it holds of a topic all belong to the same one.
    """

    def __init__(self) -> None:
        self.outlived: Partitions = frozenset()
        self._made: dict[str, int] = {}
        self._gone: set[str] = set()

    def made(self, topic: str) -> int | None:
        """Return the zxid that created the topic the member holds partitions of; None if it is not known."""
        return self._made.get(topic)

    def is_claimable(self, at: TopicPartition) -> bool:
        """Return False if the member must first release the partitions that have outlived this topic."""
        return at.topic not in self._gone

    def outlived_by(
        self, held: Iterable[TopicPartition], made: Mapping[str, int], unreadable: Iterable[UnreadableNode]
    ) -> Partitions:
        """Return the held partitions that have outlived their topic. `made` has the zxids of the current topics."""
        held, hidden = frozenset(held), {node.path for node in unreadable}
        known = {at.topic: self._made[at.topic] for at in held if at.topic in self._made}
        self._made = {**made, **known}
        self._gone = {
            topic for topic, zxid in known.items() if made.get(topic) != zxid and broker_topic(topic) not in hidden
        }
        self.outlived = frozenset(at for at in held if at.topic in self._gone)
        return self.outlived
