"""What a member has in place of a seat in a group: every partition of its topics is its own, and nothing is written."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable, Iterable

from ..core.rebalance.shared_plan import AwaitedPlan
from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import CommittedOffset, Registration, UnreadableNode
from ..exceptions import NoGroupError
from ..zookeeper.reading.topics import TopicSight
from ..zookeeper.session.registry_context import RegistryContext
from .events import EventKind, MemberStats
from .generation import Generation, Offsets
from .membership import Holder, Lives, Outlook, Partitions, in_a_hurry, is_cut_off, unreadable_nodes


class LoneSeat:
    """The same methods as `Seat` has, for one that shares with nobody."""

    group_name = ""
    alive = True
    """No session holds anything: so none that ends takes anything away."""
    awaited: AwaitedPlan | None = None
    connected = True
    """So work may go on, whatever becomes of the connection."""

    def __init__(
        self,
        context: RegistryContext,
        registration: Registration,
        *,
        partitions: Callable[[str], Iterable[int]] | None,
        tell: Callable[[Partitions | None], object],
        stats: MemberStats,
    ) -> None:
        context = in_a_hurry(context)
        self.id = f"{socket.gethostname()}:{uuid.uuid4()}"
        self.timeout = context.timeout
        self._session = context.session
        self.holders: dict[TopicPartition, Holder] = {}
        self._registration = registration
        self._stats = stats
        self._tell = tell
        self._sight = TopicSight(context, lambda _at: tell(None), partitions)
        self._lives = Lives()
        self._held: Partitions = frozenset()
        self._positions: dict[TopicPartition, tuple[int | None, int]] = {}  # in which life of the topic, and where
        self._number = 0
        self._wanted: Partitions = frozenset()

    def __str__(self) -> str:
        return f"{self.id!r} of no group"

    def register(self) -> None:
        """Nothing is."""

    def deregister(self) -> None:
        """Nothing was registered; what it works on is given up."""
        self._held = frozenset()

    @property
    def cut_off(self) -> bool:
        """Whether the connection was closed, so that there will be none any more."""
        return is_cut_off(self._session)

    def wait_connected(self) -> None:
        """There is nothing to be done with one."""

    def close(self) -> None:
        """Hear nothing more."""
        self._sight.close()

    def look(self) -> Outlook:
        """Read the topics: all of them are to be worked on. Plans are counted, as there is no common number."""
        self._stats.looks += 1
        found = self._sight.topics(self._registration)
        outlived = self._lives.outlived_by(self._held, found.made, found.unreadable)
        wanted = frozenset(TopicPartition(t, n) for t, numbers in found.partitions.items() for n in numbers) - outlived
        if outlived:
            self._tell(None)  # there may be more to be had when they are given up
        if wanted != self._wanted:
            self._number, self._wanted = self._number + 1, wanted
        notes = {EventKind.MALFORMED: unreadable_nodes(found.unreadable)}
        return Outlook(self._number, dict.fromkeys(wanted, 0), self._held, {}, notes)

    def pass_over(self, _awaited: AwaitedPlan) -> list[str]:
        """A lone member waits for no plan."""
        return []

    def claim(self, partitions: Partitions) -> Partitions:
        """Everything is granted."""
        self._held |= partitions
        return partitions

    def release(self, partitions: Partitions) -> None:
        """Work on these no more."""
        self._held -= partitions

    def await_free(self, partitions: Partitions) -> None:
        """Nobody holds anything."""

    def writer(self, _partitions: Partitions) -> Callable[[Offsets, Offsets], None]:
        """There is nowhere to commit."""

        def write(_offsets: Offsets, _back_from: Offsets) -> None:
            raise NoGroupError

        return write

    def commit_marked(self, generation: Generation, among: Partitions) -> None:
        """Remember what was marked of these: there the next generation begins."""
        kept = among - self._lives.outlived
        for at, offset in generation.marked.items():
            if at in kept:
                self._positions[at] = self._lives.made(at.topic), offset

    def committed(self, partitions: Partitions) -> dict[TopicPartition, CommittedOffset | UnreadableNode | None]:
        """Where to go on with these."""
        return {at: self._position(at) for at in partitions}

    def _position(self, at: TopicPartition) -> CommittedOffset | None:
        made, offset = self._positions.get(at, (None, None))
        if offset is None or made != self._lives.made(at.topic):
            return None
        return CommittedOffset(self.group_name, at, offset)

    def stream(self, _at: TopicPartition) -> int:
        """There is only one."""
        return 0
