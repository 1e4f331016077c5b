"""The strategies by which members share partitions: range and round robin as in Kafka's Scala consumer, and sticky."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice, pairwise
from operator import itemgetter
from typing import Final, TypeAlias

from ..znodes.topic_partition import TopicPartition
from .members import Assignment, Assignor, Members, Readers, Stream, next_number, sorted_streams

# The range strategy, exactly as Kafka's Scala consumer computes it.


def range_assignor(members: Members) -> Assignment:
    """Assign consecutive partitions to each stream, topic by topic. The first streams get one more if there is a rest.

    With P partitions and T streams, n = P div T and x = P mod T: the stream at position i starts at n·i + min(i, x).
    It gets n partitions, and one more if i < x.

    >>> two_streams_and_one = Members({"a": {"t": 2}, "b": {"t": 1}}, {"t": range(7)})
    >>> for at, stream in range_assignor(two_streams_and_one).items():
    ...     print(at, stream)
    t/0 a-0
    t/1 a-0
    t/2 a-0
    t/3 a-1
    t/4 a-1
    t/5 b-0
    t/6 b-0
    """
    return {TopicPartition.checked(topic, number): stream for topic, number, stream in assign_ranges(members)}


def assign_ranges(members: Members) -> Iterator[tuple[str, int, Stream]]:
    """Yield each partition (topic and number) with its stream."""
    cached: dict[tuple[Readers, int], list[Stream]] = {}
    for topic in members.topics:
        partitions, readers = members.numbers(topic), members.readers(topic)
        if (readers, len(partitions)) not in cached:  # with more streams than partitions, the last streams get none
            cached[readers, len(partitions)] = list(islice(sorted_streams(readers), len(partitions)))
        share, more = divmod(len(partitions), sum(count for _instance, count in readers))
        for position, stream in enumerate(cached[readers, len(partitions)]):
            start = share * position + min(position, more)
            for number in partitions[start : start + share + (position < more)]:
                yield topic, number, stream


# The round-robin strategy, exactly as Kafka's Scala consumer computes it, with Java's hash of a text.


def round_robin_assignor(members: Members) -> Assignment:
    """Deal all partitions of all topics to all streams in turn, sorted by Java's hash of `topic-partition`.

    A stream whose instance does not subscribe to the topic is skipped until the next round.

    >>> alike = Members({"a": {"t": 1, "u": 1}, "b": {"t": 1, "u": 1}}, {"t": range(2), "u": range(3)})
    >>> [f"{at}: {stream}" for at, stream in round_robin_assignor(alike).items()]
    ['t/0: a-0', 't/1: b-0', 'u/0: a-0', 'u/1: b-0', 'u/2: a-0']
    """
    return {TopicPartition.checked(topic, number): stream for topic, number, stream in deal_in_rounds(members)}


def deal_in_rounds(members: Members) -> Iterator[tuple[str, int, Stream]]:
    """Yield each partition (topic and number) with its stream."""
    readers = {topic: members.readers(topic) for topic in members.topics}
    walks = {each: _Walk(each) for each in readers.values()}
    partitions = [
        (_extend_hash(start, str(number)), topic, number)
        for topic, start in ((topic, java_hash(f"{topic}-")) for topic in members.topics)
        for number in members.numbers(topic)
    ]
    partitions.sort(key=itemgetter(0))
    position: _Position = (0, "")
    for _hash, topic, number in partitions:
        position, stream = walks[readers[topic]].after(position)
        yield topic, number, stream


_Position: TypeAlias = tuple[int, str]
"""The number of completed rounds, and the text of the current stream."""


class _Walk:
    """A circular walk over all sorted streams that skips the streams that do not read the topic.

    It keeps only the next stream of each instance, so its cost does not depend on the number of streams.
    """

    def __init__(self, readers: Readers) -> None:
        self._counts = dict(readers)
        self._first = sorted((f"{id}-0", id) for id in self._counts)
        self._round = 0
        self._next = list(self._first)  # sorted, and so a heap

    def after(self, position: _Position) -> tuple[_Position, Stream]:
        """Return the next stream after a position, and its position. Positions must not decrease between calls."""
        number, text = position
        if number != self._round:
            self._restart(number)
        while self._next and self._next[0][0] <= text:
            self._skip(text)
        if not self._next:
            self._restart(number + 1)
        found, instance = self._next[0]
        return (self._round, found), Stream(instance, int(found[len(instance) + 1 :]))

    def _restart(self, number: int) -> None:
        self._round, self._next = number, list(self._first)

    def _skip(self, text: str) -> None:
        """Replace the first of the next streams by the stream of its instance that follows `text`."""
        instance = self._next[0][1]
        own = text.startswith(f"{instance}-")  # otherwise all streams of the instance come before it
        number = next_number(text[len(instance) + 1 :], self._counts[instance]) if own else None
        if number is None:
            heapq.heappop(self._next)
        else:
            heapq.heapreplace(self._next, (f"{instance}-{number}", instance))


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode` of a text, a signed 32-bit number.

    >>> java_hash("orders-0"), java_hash("")
    (1234322248, 0)
    """
    return _extend_hash(0, text)


def _extend_hash(start: int, text: str) -> int:
    """Return the hash of a longer text: `start` is the hash of its beginning, and `text` is the rest."""
    found = start
    for unit in _utf16(text):
        found = 31 * found + unit
    found &= 0xFFFF_FFFF
    return found - 2**32 if found >= 2**31 else found


def _utf16(text: str) -> Iterator[int]:
    encoded = text.encode("utf-16-be", "surrogatepass")
    return (int.from_bytes(encoded[at : at + 2], "big") for at in range(0, len(encoded), 2))


# The sticky strategy: an even assignment that moves as few partitions as possible.


def sticky_assignor(members: Members) -> Assignment:
    """Assign partitions as evenly as possible, and take as few as possible from their current owners.

    If all instances subscribe to the same topics, their numbers of partitions differ by at most one. Otherwise no chain
    of moves makes the assignment more even. The streams of an instance take turns.

    >>> before = {TopicPartition("t", n): "a" for n in range(4)}
    >>> after = sticky_assignor(Members({"a": {"t": 1}, "b": {"t": 1}}, {"t": range(4)}, before))
    >>> [f"{at}: {stream}" for at, stream in after.items()]
    ['t/0: a-0', 't/1: a-0', 't/2: b-0', 't/3: b-0']
    """
    return _to_streams(members, _Balance(members).settle())


_Kind: TypeAlias = tuple[str, str | None]
"""A topic and the current owner. The partitions of one kind are interchangeable."""

_EVEN: Final = 2**20
"""The value of one step towards evenness, counted in moves. It exceeds every possible number of moves."""


class _Balance:
    """Moves partitions along chains of instances, until no chain lowers the total cost.

    This is a minimum-cost flow. The cost of an instance is the square of its number of partitions. The cost of a
    partition that has left its current owner is one. Evenness counts first, by the weight `_EVEN`.
    """

    def __init__(self, members: Members) -> None:
        self._instances = sorted(id for id, topics in members.streams.items() if any(topics.values()))
        self._subscribers = {
            topic: [id for id in self._instances if members.streams[id].get(topic, 0) > 0] for topic in members.topics
        }
        self._home: dict[TopicPartition, str | None] = {}
        self._held: dict[str, dict[_Kind, list[TopicPartition]]]
        self._held = {id: defaultdict(list) for id in self._instances}
        self._load: Counter[str] = Counter(dict.fromkeys(self._instances, 0))
        self._place_all(members)

    def settle(self) -> dict[TopicPartition, str]:
        """Move partitions until no further move helps. Return the instance of each partition."""
        find = self._best_step if self._all_subscribe_alike() else self._best_path
        while (path := find()) is not None:
            for giver, taker in pairwise(path):
                self._move(giver, taker)
        found = {at: id for id, kinds in self._held.items() for some in kinds.values() for at in some}
        return dict(sorted(found.items()))

    def _place_all(self, members: Members) -> None:
        """Leave partitions with their owners if these subscribe; give the others to the instances with the fewest."""
        homeless: list[TopicPartition] = []
        for topic, subscribers in self._subscribers.items():
            for at in members.in_order(topic):
                owner = members.owners.get(at)
                home = owner if owner in subscribers else None
                self._home[at] = home
                if home is None:
                    homeless.append(at)
                else:
                    self._put(at, home)
        for at in sorted(homeless, key=lambda at: (len(self._subscribers[at.topic]), at)):  # fewest choices first
            self._put(at, min(self._subscribers[at.topic], key=lambda id: (self._load[id], id)))

    def _put(self, at: TopicPartition, instance: str) -> None:
        self._held[instance][at.topic, self._home[at]].append(at)
        self._load[instance] += 1

    def _move(self, giver: str, taker: str) -> None:
        """Move the partition with the lowest cost; among equals the last one, so that the first ones stay."""
        kind = min(self._movable(giver, taker), key=lambda kind: (_cost(kind, giver, taker), kind[0], kind[1] or ""))
        at = self._held[giver][kind].pop()
        if not self._held[giver][kind]:
            del self._held[giver][kind]
        self._load[giver] -= 1
        self._put(at, taker)

    def _movable(self, giver: str, taker: str) -> list[_Kind]:
        return [kind for kind in self._held[giver] if taker in self._subscribers[kind[0]]]

    def _all_subscribe_alike(self) -> bool:
        """True if all instances subscribe to the same topics, so that any partition can go to any instance."""
        return all(subscribers == self._instances for subscribers in self._subscribers.values())

    def _best_step(self) -> list[str] | None:
        """Return the move from the highest to the lowest load. Enough if all subscribe alike: chains gain no more."""
        if not self._subscribers:
            return None
        most = max(self._instances, key=lambda id: (self._load[id], id))
        least = min(self._instances, key=lambda id: (self._load[id], id))
        return [most, least] if self._load[most] > self._load[least] + 1 else None

    def _best_path(self) -> list[str] | None:
        """Return the chain of moves that lowers the total cost most; None if no chain lowers it."""
        edges = self._edges()
        least = min(self._load.values(), default=0)
        some_are_away = any(cost < 0 for costs in edges.values() for cost in costs.values())
        best: tuple[int, list[str]] | None = None
        for start in sorted(self._instances, key=lambda id: (-self._load[id], id)):
            lowest = _EVEN * (least + 1 - self._load[start]) - some_are_away * len(self._instances)
            if lowest >= (0 if best is None else best[0]):
                break  # no chain from here, or from instances with less, lowers the cost further
            for end, (moves, path) in self._cheapest(start, edges).items():
                change = _EVEN * (self._load[end] + 1 - self._load[start]) + moves
                if end != start and change < (0 if best is None else best[0]):
                    best = change, path
        return None if best is None else best[1]

    def _edges(self) -> dict[str, dict[str, int]]:
        """Return the cost of the cheapest move from each giver to each taker."""
        edges: dict[str, dict[str, int]] = {id: {} for id in self._instances}
        for giver, kinds in self._held.items():
            for kind in kinds:
                for taker in self._subscribers[kind[0]]:
                    if taker != giver:
                        cost = _cost(kind, giver, taker)
                        edges[giver][taker] = min(cost, edges[giver].get(taker, cost))
        return edges

    def _cheapest(self, start: str, edges: Mapping[str, Mapping[str, int]]) -> dict[str, tuple[int, list[str]]]:
        """Return the cheapest chain from one instance to each other instance, with its cost."""
        found: dict[str, tuple[int, list[str]]] = {start: (0, [start])}
        waiting = [start]
        while waiting:
            here = waiting.pop(0)
            so_far, path = found[here]
            for there, cost in edges[here].items():
                if there not in path and so_far + cost < found.get(there, (_EVEN, []))[0]:
                    found[there] = so_far + cost, [*path, there]
                    waiting.append(there)
        return found


def _cost(kind: _Kind, giver: str, taker: str) -> int:
    """The cost of a move: 1 away from the current owner, -1 back to it, otherwise 0."""
    home = kind[1]
    return (home == giver) - (home == taker)


def _to_streams(members: Members, held: Mapping[TopicPartition, str]) -> Assignment:
    assignment: Assignment = {}
    turns: Counter[tuple[str, str]] = Counter()
    for at, instance in held.items():
        streams = members.streams[instance][at.topic]
        assignment[at] = Stream(instance, turns[instance, at.topic] % streams)
        turns[instance, at.topic] += 1
    return assignment


# The assignors by name, and the share of one member in an assignment.
#
# `range` and `roundrobin` compute what Kafka's Scala consumer computes, so zkgroups and Scala members of one group
# come to the same result. `sticky` moves as few partitions as possible. Any other `Assignor` works if all members use
# it.


ASSIGNORS: Final[Mapping[str, Assignor]] = {
    "range": range_assignor,
    "roundrobin": round_robin_assignor,
    "sticky": sticky_assignor,
}
"""By the names under which members announce them; the first two are Kafka's own names."""

COMPUTED_BY_EACH: Final[Mapping[str, Callable[[Members], Iterable[tuple[str, int, Stream]]]]] = {
    "range": assign_ranges,
    "roundrobin": deal_in_rounds,
}
"""The strategies of the old clients, which depend on nothing but the members. Each member computes its own share."""


def share_of(instance: str, strategy: str, members: Members) -> dict[TopicPartition, int]:
    """Return the partitions of one instance, each with the number of its stream.

    The result is that of `assigned_to` with the whole assignment, at a fraction of the cost. The strategy must be in
    `COMPUTED_BY_EACH`.

    >>> share_of("b", "range", Members({"a": {"t": 1}, "b": {"t": 1}}, {"t": range(3)}))
    {TopicPartition(topic='t', partition=2): 0}
    """
    partitions = COMPUTED_BY_EACH[strategy](members)
    mine = ((topic, number, stream.number) for topic, number, stream in partitions if stream.instance == instance)
    return {TopicPartition.checked(topic, number): stream for topic, number, stream in sorted(mine)}
