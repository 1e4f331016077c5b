"""The sticky strategy: an even assignment that moves as few partitions as possible."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import pairwise
from typing import Final, TypeAlias

from ..znodes.topic_partition import TopicPartition
from .members import Assignment, Members, Stream


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
