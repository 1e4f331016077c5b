"""Who reads which partition: functions of plain data, which every member of a group computes for itself.

The unit is a stream, because that is what the old clients count: an instance with two streams of a topic has two
shares of it. `range_assignor` and `round_robin_assignor` compute what Kafka's Scala consumer computes, so that a group
in which some members are ours and some are not comes to one answer; `sticky_assignor` moves as little as it can. Any
other function of the same form will do, as long as all members of a group use it.

None of them depends on the order in which members, topics or partitions are given.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

from ..znodes.paths import check_partition, check_topic
from ..znodes.values import TopicPartition


class Stream(NamedTuple):
    """One of the streams of an instance; as text it is what Scala's owner nodes hold.

    >>> str(Stream("billing_h-17-ab12cd34", 0))
    'billing_h-17-ab12cd34-0'
    """

    instance: str
    number: int

    def __str__(self) -> str:
        return f"{self.instance}-{self.number}"


Readers: TypeAlias = tuple[tuple[str, int], ...]
"""Instances with their numbers of streams."""


@dataclass(frozen=True, slots=True)
class Members:
    """What is known when partitions are assigned.

    `streams` has the number of streams of each topic that an instance subscribes to, `partitions` the partitions of
    each topic, and `owners` who holds what at this moment, which only matters to who wants to keep it.
    """

    streams: Mapping[str, Mapping[str, int]]
    partitions: Mapping[str, Sequence[int]]
    owners: Mapping[TopicPartition, str] = field(default_factory=dict)

    def readers(self, topic: str) -> Readers:
        """The instances that read a topic, sorted by id, each with its number of streams."""
        found = ((id, topics.get(topic, 0)) for id, topics in self.streams.items())
        return tuple(sorted((id, count) for id, count in found if count > 0))

    def of(self, topic: str) -> list[Stream]:
        """The first streams that read a topic, sorted as text (`-10` before `-2`).

        They are limited to the number of partitions of all topics, because a registration may ask for two billion.
        """
        return list(islice(_in_order(self.readers(topic)), sum(map(len, self.partitions.values()))))

    @property
    def topics(self) -> list[str]:
        """Those that somebody subscribes to and that have partitions, sorted."""
        wanted = {topic for topics in self.streams.values() for topic, streams in topics.items() if streams > 0}
        return sorted(topic for topic in wanted if self.partitions.get(topic))

    def in_order(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic by their numbers."""
        return [TopicPartition.checked(topic, number) for number in self.numbers(topic)]

    def numbers(self, topic: str) -> list[int]:
        """The numbers of a topic's partitions, from the lowest."""
        check_topic(topic)
        return [check_partition(number) for number in sorted(set(self.partitions[topic]))]


Assignment: TypeAlias = dict[TopicPartition, Stream]
"""Every partition of every topic that somebody subscribes to, with the stream that is to read it."""

Assignor: TypeAlias = Callable[[Members], Assignment]


Dealt: TypeAlias = Iterable[tuple[str, int, Stream]]
"""The same, one by one: a topic, the number of a partition, and who is to read it."""


def assigned_to(instance: str, assignment: Mapping[TopicPartition, Stream]) -> dict[TopicPartition, int]:
    """What an instance is to read, each with the number of its stream."""
    mine = ((at, stream.number) for at, stream in assignment.items() if stream.instance == instance)
    return dict(sorted(mine))


def range_assignor(members: Members) -> Assignment:
    """Topic by topic, each stream takes a run of partitions; the first streams take one more where it does not divide.

    With P partitions and T streams, n = P div T and x = P mod T: the stream at position i begins at n·i + min(i, x) and
    takes n, and one more if i < x.

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
    return _everything(_ranges(members))


def _ranges(members: Members) -> Dealt:
    first: dict[tuple[Readers, int], list[Stream]] = {}
    for topic in members.topics:
        partitions, readers = members.numbers(topic), members.readers(topic)
        if (readers, len(partitions)) not in first:  # later streams get no partition
            first[readers, len(partitions)] = list(islice(_in_order(readers), len(partitions)))
        share, more = divmod(len(partitions), sum(count for _instance, count in readers))
        for position, stream in enumerate(first[readers, len(partitions)]):
            start = share * position + min(position, more)
            for number in partitions[start : start + share + (position < more)]:
                yield topic, number, stream


def round_robin_assignor(members: Members) -> Assignment:
    """All partitions of all topics, in an order that looks random, are dealt to all streams, round and round.

    The order is that of Java's hash of `topic-partition`. A stream whose instance does not subscribe to a topic is
    passed over; it has to wait for the next round.

    >>> alike = Members({"a": {"t": 1, "u": 1}, "b": {"t": 1, "u": 1}}, {"t": range(2), "u": range(3)})
    >>> [f"{at}: {stream}" for at, stream in round_robin_assignor(alike).items()]
    ['t/0: a-0', 't/1: b-0', 'u/0: a-0', 'u/1: b-0', 'u/2: a-0']
    """
    return _everything(_rounds(members))


def _rounds(members: Members) -> Dealt:
    readers = {topic: members.readers(topic) for topic in members.topics}
    walks = {each: _Walk(each) for each in readers.values()}
    everything = [
        (_java_hash_on(start, str(number)), topic, number)
        for topic, start in ((topic, java_hash(f"{topic}-")) for topic in members.topics)
        for number in members.numbers(topic)
    ]
    everything.sort(key=itemgetter(0))
    at: _Place = (0, "")
    for _hash, topic, number in everything:
        at, stream = walks[readers[topic]].after(at)
        yield topic, number, stream


_Place: TypeAlias = tuple[int, str]
"""How many rounds the walk has completed, and the text of the current stream."""


class _Walk:
    """A circular walk over all sorted streams that skips the streams that do not read the topic.

    It keeps only the next stream of each instance, so its cost does not depend on the number of streams.
    """

    def __init__(self, readers: Readers) -> None:
        self._counts = dict(readers)
        self._first = sorted((f"{id}-0", id) for id in self._counts)
        self._round = 0
        self._next = list(self._first)  # sorted, and so a heap

    def after(self, at: _Place) -> tuple[_Place, Stream]:
        """Return the next stream after a place, and its place. A call must not go back behind the last one."""
        number, text = at
        if number != self._round:
            self._restart(number)
        while self._next and self._next[0][0] <= text:
            self._pass(text)
        if not self._next:
            self._restart(number + 1)
        found, instance = self._next[0]
        return (self._round, found), Stream(instance, int(found[len(instance) + 1 :]))

    def _restart(self, number: int) -> None:
        self._round, self._next = number, list(self._first)

    def _pass(self, text: str) -> None:
        """Replace the first of the next streams by the stream of its instance that follows `text`."""
        instance = self._next[0][1]
        own = text.startswith(f"{instance}-")  # otherwise all streams of the instance come before it
        number = _number_after(text[len(instance) + 1 :], self._counts[instance]) if own else None
        if number is None:
            heapq.heappop(self._next)
        else:
            heapq.heapreplace(self._next, (f"{instance}-{number}", instance))


def _number_after(text: str, count: int) -> int | None:
    """The number below `count` whose decimal text follows `text` most closely; None if there is none.

    >>> [_number_after(text, 12) for text in ("0", "1", "10", "11", "1-0", "9", "b")]
    [1, 10, 11, 2, 10, None, None]
    """
    for kept in range(min(len(text), len(str(count))), -1, -1):
        prefix = text[:kept]
        if prefix and not _is_number(prefix):
            continue
        digit = "0" if kept == len(text) or text[kept] < "0" else chr(ord(text[kept]) + 1)
        if digit <= "9" and int(prefix + digit) < count:
            return int(prefix + digit)
    return None


def _is_number(text: str) -> bool:
    """True for decimal digits to which another digit can be added."""
    return text.isascii() and text.isdigit() and text[0] != "0"


def _in_order(readers: Readers) -> Iterator[Stream]:
    """All streams of some instances, sorted as text."""
    merged = heapq.merge(*(_texts(id, count) for id, count in readers))
    return (Stream(instance, number) for _text, instance, number in merged)


def _texts(instance: str, count: int) -> Iterator[tuple[str, str, int]]:
    """The streams of one instance, sorted as text, each as a pair of its text and itself."""
    number: int | None = 0
    while number is not None:
        yield f"{instance}-{number}", instance, number
        number = _number_after(str(number), count)


def _everything(dealt: Dealt) -> Assignment:
    return {TopicPartition.checked(topic, number): stream for topic, number, stream in dealt}


COMPUTED_BY_EACH: Final[Mapping[str, Callable[[Members], Dealt]]] = {"range": _ranges, "roundrobin": _rounds}
"""The strategies of the old clients, by which each member computes what is its own, as they do."""


def share_of(instance: str, strategy: str, members: Members) -> dict[TopicPartition, int]:
    """What `assigned_to` finds in the whole assignment by one of `COMPUTED_BY_EACH`, at a fraction of the cost.

    >>> share_of("b", "range", Members({"a": {"t": 1}, "b": {"t": 1}}, {"t": range(3)}))
    {TopicPartition(topic='t', partition=2): 0}
    """
    dealt = COMPUTED_BY_EACH[strategy](members)
    mine = ((topic, number, stream.number) for topic, number, stream in dealt if stream.instance == instance)
    return {TopicPartition.checked(topic, number): stream for topic, number, stream in sorted(mine)}


def java_hash(text: str) -> int:
    """What Java's `String.hashCode` says, a signed number of 32 bits.

    >>> java_hash("orders-0"), java_hash("")
    (1234322248, 0)
    """
    return _java_hash_on(0, text)


def _java_hash_on(start: int, text: str) -> int:
    """The hash of a text that goes on from one whose hash is known."""
    found = start
    for unit in _utf16(text):
        found = 31 * found + unit
    found &= 0xFFFF_FFFF
    return found - 2**32 if found >= 2**31 else found


def _utf16(text: str) -> Iterable[int]:
    encoded = text.encode("utf-16-be", "surrogatepass")
    return (int.from_bytes(encoded[at : at + 2], "big") for at in range(0, len(encoded), 2))


def sticky_assignor(members: Members) -> Assignment:
    """As evenly as can be, with as few partitions as possible taken from who holds them.

    Where all instances subscribe alike, none has two partitions more than another. Where they do not, no partition
    could go to somebody who has two fewer, nor could a chain of such moves make it more even. Streams of an instance
    take turns at what it has.

    >>> before = {TopicPartition("t", n): "a" for n in range(4)}
    >>> after = sticky_assignor(Members({"a": {"t": 1}, "b": {"t": 1}}, {"t": range(4)}, before))
    >>> [f"{at}: {stream}" for at, stream in after.items()]
    ['t/0: a-0', 't/1: a-0', 't/2: b-0', 't/3: b-0']
    """
    held = _Balance(members).settle()
    return _by_streams(members, held)


_EVEN: Final = 2**20
"""What a step towards evenness is worth, in moves: more than there can be."""


class _Balance:
    """Partitions moved about until no chain of moves makes them more even, or as even with fewer moves.

    This is a flow of least cost. What an instance holds costs the square of its number; a partition that is not where
    it was costs one. Partitions of one topic with one former owner are alike, and moved as such.
    """

    def __init__(self, members: Members) -> None:
        self._instances = sorted(id for id, topics in members.streams.items() if any(topics.values()))
        self._may_have = {
            topic: [id for id in self._instances if members.streams[id].get(topic, 0) > 0] for topic in members.topics
        }
        self._home: dict[TopicPartition, str | None] = {}
        self._held: dict[str, dict[tuple[str, str | None], list[TopicPartition]]]
        self._held = {id: defaultdict(list) for id in self._instances}
        self._load: Counter[str] = Counter(dict.fromkeys(self._instances, 0))
        self._place_all(members)

    def settle(self) -> dict[TopicPartition, str]:
        """Move until nothing is gained any more; by partition, who is to have it."""
        find = self._best_step if self._alike() else self._best_path
        while (path := find()) is not None:
            for giver, taker in pairwise(path):
                self._move(giver, taker)
        found = {at: id for id, kinds in self._held.items() for some in kinds.values() for at in some}
        return dict(sorted(found.items()))

    def _place_all(self, members: Members) -> None:
        """First everything that may stay, then the rest, each to who has least."""
        homeless: list[TopicPartition] = []
        for topic, able in self._may_have.items():
            for at in members.in_order(topic):
                owner = members.owners.get(at)
                home = owner if owner in able else None
                self._home[at] = home
                if home is None:
                    homeless.append(at)
                else:
                    self._put(at, home)
        for at in sorted(homeless, key=lambda at: (len(self._may_have[at.topic]), at)):  # who has no choice comes first
            self._put(at, min(self._may_have[at.topic], key=lambda id: (self._load[id], id)))

    def _put(self, at: TopicPartition, instance: str) -> None:
        self._held[instance][at.topic, self._home[at]].append(at)
        self._load[instance] += 1

    def _move(self, giver: str, taker: str) -> None:
        """The partition whose move costs least; of those alike the last, so that the first ones stay."""
        kind = min(self._movable(giver, taker), key=lambda kind: (_cost(kind, giver, taker), kind[0], kind[1] or ""))
        at = self._held[giver][kind].pop()
        if not self._held[giver][kind]:
            del self._held[giver][kind]
        self._load[giver] -= 1
        self._put(at, taker)

    def _movable(self, giver: str, taker: str) -> list[tuple[str, str | None]]:
        return [kind for kind in self._held[giver] if taker in self._may_have[kind[0]]]

    def _alike(self) -> bool:
        """Whether all subscribe to the same topics, so that any partition can go to anybody."""
        return all(able == self._instances for able in self._may_have.values())

    def _best_step(self) -> list[str] | None:
        """From who has most to who has least, where all subscribe alike: no chain gains more than one move."""
        if not self._may_have:
            return None
        most = max(self._instances, key=lambda id: (self._load[id], id))
        least = min(self._instances, key=lambda id: (self._load[id], id))
        return [most, least] if self._load[most] > self._load[least] + 1 else None

    def _best_path(self) -> list[str] | None:
        """The chain of moves that gains most, from who has more to who has less; None where none gains."""
        edges = self._edges()
        least = min(self._load.values(), default=0)
        some_are_away = any(cost < 0 for costs in edges.values() for cost in costs.values())
        best: tuple[int, list[str]] | None = None
        for start in sorted(self._instances, key=lambda id: (-self._load[id], id)):
            bound = _EVEN * (least + 1 - self._load[start]) - some_are_away * len(self._instances)
            if bound >= (0 if best is None else best[0]):
                break
            for end, (moves, path) in self._cheapest(start, edges).items():
                gain = _EVEN * (self._load[end] + 1 - self._load[start]) + moves
                if end != start and gain < (0 if best is None else best[0]):
                    best = gain, path
        return None if best is None else best[1]

    def _edges(self) -> dict[str, dict[str, int]]:
        """From each giver to each taker, what the cheapest move costs."""
        edges: dict[str, dict[str, int]] = {id: {} for id in self._instances}
        for giver, kinds in self._held.items():
            for kind in kinds:
                for taker in self._may_have[kind[0]]:
                    if taker != giver:
                        cost = _cost(kind, giver, taker)
                        edges[giver][taker] = min(cost, edges[giver].get(taker, cost))
        return edges

    def _cheapest(self, start: str, edges: Mapping[str, Mapping[str, int]]) -> dict[str, tuple[int, list[str]]]:
        """From one instance to all others: what the cheapest chain costs, and the chain."""
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


def _cost(kind: tuple[str, str | None], giver: str, taker: str) -> int:
    """One for what leaves home, less than nothing for what comes back."""
    home = kind[1]
    return (home == giver) - (home == taker)


def _by_streams(members: Members, held: Mapping[TopicPartition, str]) -> Assignment:
    assignment: Assignment = {}
    turns: Counter[tuple[str, str]] = Counter()
    for at, instance in held.items():
        streams = members.streams[instance][at.topic]
        assignment[at] = Stream(instance, turns[instance, at.topic] % streams)
        turns[instance, at.topic] += 1
    return assignment


ASSIGNORS: Final[Mapping[str, Assignor]] = {
    "range": range_assignor,
    "roundrobin": round_robin_assignor,
    "sticky": sticky_assignor,
}
"""By the names under which members announce them; the first two are Kafka's own."""
