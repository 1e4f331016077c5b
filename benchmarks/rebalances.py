"""A rebalance: 20 members share partitions, and one of them closes; how long until everything is owned again.

    python -m benchmarks.rebalances [--members 20] [--partitions 200 4000] [--rounds 3] [--groups 5 20 50 200]

- zkgroups, range: members that release and claim in one transaction each, and wait on what others still hold
- zkgroups, sticky: the same, moving only what must move
- kazoo: what one writes by hand, as the old clients do: on a change of `ids` each member gives up what it has, computes
  its range, and creates its owner nodes one by one; what is still held is tried again after 10 ms
- kazoo, less: the same, but only what is not its own any more is given up

Every member has a session of its own. What counts is what stands in ZooKeeper: the clock stops when each partition
belongs to whom the strategy gives it. For sticky, it also counts how long workers stood still that keep what they have.
And for groups of several sizes: requests to ZooKeeper for each member, while the group joins, and when one closes. And
watch events for each member, with the watches of members, and with one persistent watch on all groups in their place.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Self

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, NoNodeError

from benchmarks import Times, in_turn, ratios, result, table
from zkgroups import Generation, Member, Members, Owner, Registry, range_assignor
from zkgroups.core.times import to_ms
from zkgroups.testing import TcpProxy, ZooKeeperServer
from zkgroups.zookeeper.kazoo_compat.safe_decoding import report_events

TOPIC = "orders"
RETRY = 0.010
PATIENCE = 60.0
QUIET = 10
"""So many requests in a second are the heartbeats of the sessions."""

Shares = Mapping[str, int]


class Plain:
    """A member as one writes it with kazoo alone."""

    def __init__(self, hosts: str, group: str, id: str, *, keeps: bool = False) -> None:
        self.id = id
        self._keeps = keeps
        self._root = f"/consumers/{group}"
        self._client = KazooClient(hosts)
        self._news = threading.Event()
        self._closing = False
        self._held: set[int] = set()
        self._thread = threading.Thread(target=self._work)

    def start(self) -> Self:
        self._client.start()
        self._client.create(f"{self._root}/ids/{self.id}", b"{}", ephemeral=True, makepath=True)
        self._client.ensure_path(f"{self._root}/owners/{TOPIC}")
        self._client.ChildrenWatch(f"{self._root}/ids", lambda _names: self._news.set())
        self._thread.start()
        return self

    def close(self) -> None:
        self._closing = True
        self._news.set()
        self._thread.join()
        self._client.stop()
        self._client.close()

    def _work(self) -> None:
        while self._news.wait() and not self._closing:
            self._news.clear()
            self._rebalance()

    def _rebalance(self) -> None:
        if not self._keeps:
            self._release(self._held)
        ids = self._client.get_children(f"{self._root}/ids")
        numbers = map(int, json.loads(self._client.get(f"/brokers/topics/{TOPIC}")[0])["partitions"])
        plan = range_assignor(Members({id: {TOPIC: 1} for id in ids}, {TOPIC: list(numbers)}))
        mine = {at.partition for at, stream in plan.items() if stream.instance == self.id}
        self._release(self._held - mine)
        for number in sorted(mine - self._held):
            self._claim(number)

    def _release(self, numbers: set[int]) -> None:
        for number in sorted(numbers):
            self._client.delete(self._owner(number))
            self._held.discard(number)

    def _claim(self, number: int) -> None:
        while not (self._news.is_set() or self._closing):
            try:
                self._client.create(self._owner(number), f"{self.id}-0".encode(), ephemeral=True)
            except NodeExistsError:
                time.sleep(RETRY)
            else:
                self._held.add(number)
                return

    def _owner(self, number: int) -> str:
        return f"{self._root}/owners/{TOPIC}/{number}"


class Ours:
    """A member of zkgroups with a worker, and how long it stood still."""

    def __init__(
        self, hosts: str, group: str, id: str, strategy: str, *, registry: Registry | None = None, **options: Any
    ) -> None:
        self._own = Registry.connect(hosts) if registry is None else None
        group_ = (self._own if registry is None else registry).group(group)  # type: ignore[union-attr]
        self.member = Member(group_, [TOPIC], id=id, assignors=[strategy], **options)
        self._thread = threading.Thread(target=self._run)
        self._ended: float | None = None
        self.still = 0.0

    def start(self) -> Self:
        self.member.start()
        self._thread.start()
        return self

    def close(self) -> None:
        self.member.close()
        self._thread.join()
        if self._own is not None:
            self._own.close()

    def _run(self) -> None:
        for generation in self.member.generations():
            if self._ended is not None:
                self.still += time.perf_counter() - self._ended
            generation.start(self._work)
            generation.wait()
            self._ended = time.perf_counter()

    @staticmethod
    def _work(generation: Generation) -> None:
        generation.wait()


def shares(registry: Registry, group: str) -> dict[str, int]:
    """How many partitions each instance holds."""
    found: dict[str, int] = {}
    for owner in registry.group(group).owners():
        if isinstance(owner, Owner):
            id = owner.id.rpartition("-")[0]
            found[id] = found.get(id, 0) + 1
    return found


def wait_for(registry: Registry, group: str, members: int, partitions: int) -> None:
    """Until each has its share. It looks as cheaply as can be: what is measured must not be what it takes to look."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        began = time.monotonic()
        if all_are_owned(registry, group, partitions) and is_balanced(shares(registry, group), members, partitions):
            return
        time.sleep(max(0.05, 9 * (time.monotonic() - began)))
    raise TimeoutError(f"{group} did not settle: {shares(registry, group)}")


def all_are_owned(registry: Registry, group: str, partitions: int) -> bool:
    """By the names alone."""
    try:
        return len(registry.client.get_children(f"/consumers/{group}/owners/{TOPIC}")) == partitions
    except NoNodeError:
        return False


def last_claim(registry: Registry, group: str) -> float:
    """When the last partition was claimed, by the server's clock, which is this machine's."""
    return max(to_ms(each.claimed_at) for each in registry.group(group).owners() if isinstance(each, Owner)) / 1000


def is_balanced(found: Shares, members: int, partitions: int) -> bool:
    """Whether so many hold all, and the same number each, but for one."""
    everything = len(found) == members and sum(found.values()) == partitions
    return everything and max(found.values()) - min(found.values()) <= 1


def one_closes(registry: Registry, group: str, members: Sequence[Any], partitions: int) -> Times:
    """Let one in the middle close, when all have settled; the seconds until all have settled again."""
    wait_for(registry, group, len(members), partitions)
    leaving = members[len(members) // 2]
    began = time.time()  # as the server's clock, which is this machine's
    closing = threading.Thread(target=leaving.close)
    closing.start()
    wait_for(registry, group, len(members) - 1, partitions)
    closing.join()
    return {"owned again": last_claim(registry, group) - began}


def plant(registry: Registry, partitions: int) -> None:
    data = json.dumps({"version": 1, "partitions": {str(number): [1] for number in range(partitions)}}).encode()
    registry.client.create(f"/brokers/topics/{TOPIC}", data, makepath=True)


def contender(
    registry: Registry, name: str, make: Callable[[str, str], Any], members: int, partitions: int
) -> Callable[[int], Times]:
    def run(number: int) -> Times:
        group = f"{name}-{number}"
        with ExitStack() as stack:
            all_of_them = []
            for place in range(members):
                id = f"m{place:03}"
                one = make(group, id)
                one.id_of = id
                all_of_them.append(one.start())
            left = [one for place, one in enumerate(all_of_them) if place != members // 2]
            for one in left:
                stack.callback(one.close)
            return one_closes(registry, group, all_of_them, partitions)

    return run


def unaffected(registry: Registry, hosts: str, members: int, partitions: int) -> dict[str, float]:
    """With sticky, one closes and comes back: how many of the others keep something all the time, and stand still."""
    group = "unaffected"
    everybody = [Ours(hosts, group, f"m{place:03}", "sticky").start() for place in range(members)]
    try:
        wait_for(registry, group, members, partitions)
        before = [(one.member.stats.interruptions, one.still, one.member.assignment) for one in everybody]
        late = Ours(hosts, group, "zzz", "sticky").start()
        wait_for(registry, group, members + 1, partitions)
        after = [(one.member.stats.interruptions, one.still, one.member.assignment) for one in everybody]
        late.close()
    finally:
        for one in everybody:
            one.close()
    kept = [(b, a) for b, a in zip(before, after, strict=True) if b[2] == a[2]]
    return {
        "members_that_keep_all": len(kept),
        "their_interruptions": sum(a[0] - b[0] for b, a in kept),
        "their_seconds_still": round(sum(a[1] - b[1] for b, a in kept), 3),
    }


def wait_until_quiet(proxy: TcpProxy) -> None:
    """Until next to nothing is asked any more: everything is owned a moment before everybody is done."""
    seen = -1
    while proxy.requests > seen + QUIET:
        seen = proxy.requests
        time.sleep(1.0)


def requests(server: ZooKeeperServer, size: int, partitions: int) -> dict[str, float]:
    """For a group of that size: requests for each member while all join at once, and when one closes."""
    group = f"requests-{size}"
    with ExitStack() as stack:
        eye = stack.enter_context(Registry.connect(server.address))
        proxy = stack.enter_context(TcpProxy(server.address))
        registries = [stack.enter_context(Registry.connect(proxy.address)) for _ in range(min(size, 20))]
        members = [
            # The looks by the clock are left out: they are there whatever happens.
            Ours("", group, f"m{place:03}", "range", registry=registries[place % len(registries)], reconcile_every=60)
            for place in range(size)
        ]
        before = proxy.requests
        for one in members:
            one.start()
        wait_for(eye, group, size, partitions)
        wait_until_quiet(proxy)
        joined, looks = proxy.requests - before, sum(one.member.stats.looks for one in members)
        before = proxy.requests
        members[size // 2].close()
        wait_for(eye, group, size - 1, partitions)
        wait_until_quiet(proxy)
        closed = proxy.requests - before
        for place, one in enumerate(members):
            if place != size // 2:
                one.close()
        return {
            "joining": round(joined / size, 1),
            "looks_while_joining": round(looks / size, 1),
            "one_closes": round(closed / size, 1),
        }


def events(server: ZooKeeperServer, size: int, partitions: int, *, one_watch: bool) -> float:
    """Watch events that each member receives while the group joins and one closes.

    The reads of a member set its watches, so another kind of watch saves no request.
    """
    group, received = f"events-{size}-{one_watch}", Counter[str]()
    with ExitStack() as stack:
        eye = stack.enter_context(Registry.connect(server.address))
        members = []
        for place in range(size):
            registry = stack.enter_context(Registry.connect(server.address))
            report_events(registry.client, lambda path: received.update([path]))
            if one_watch:
                assert stack.enter_context(registry.group_changes()).begin()
            members.append(Ours("", group, f"m{place:03}", "range", registry=registry).start())
        wait_for(eye, group, size, partitions)
        members[size // 2].close()
        wait_for(eye, group, size - 1, partitions)
        counted = received.total()
        for place, one in enumerate(members):
            if place != size // 2:
                one.close()
    return round(counted / size, 1)


def compare(members: int, partitions: int, rounds: int) -> dict[str, Times]:
    """Everybody in turn, on one server."""
    with ZooKeeperServer() as server, Registry.connect(server.address) as registry:
        hosts = server.address
        plant(registry, partitions)
        makes: dict[str, Callable[[str, str], Any]] = {
            "range": lambda group, id: Ours(hosts, group, id, "range"),
            "sticky": lambda group, id: Ours(hosts, group, id, "sticky"),
            "kazoo": lambda group, id: Plain(hosts, group, id),
            "kazoo, less": lambda group, id: Plain(hosts, group, id, keeps=True),
        }
        contenders = {name: contender(registry, name, make, members, partitions) for name, make in makes.items()}
        medians = in_turn(contenders, rounds=rounds)
    table(f"{members} members, {partitions} partitions, one closes", medians)
    return medians


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--members", type=int, default=20)
    parser.add_argument("--partitions", type=int, nargs="+", default=[200, 4000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--groups", type=int, nargs="*", default=[5, 20, 50, 200])
    options = parser.parse_args()
    found = {partitions: compare(options.members, partitions, options.rounds) for partitions in options.partitions}
    fewest = min(options.partitions)
    with ZooKeeperServer() as server, Registry.connect(server.address) as registry:
        plant(registry, fewest)
        still = unaffected(registry, server.address, options.members, fewest)
        counted = {size: requests(server, size, fewest) for size in options.groups}
        by_watch = {
            name: events(server, options.members, fewest, one_watch=one_watch)
            for name, one_watch in (("own watches", False), ("one watch", True))
        }
    print(f"{options.members} members: watch events for each {by_watch}", file=sys.stderr)
    for size, requests_made in counted.items():
        print(f"{size:>4} members: requests for each {requests_made}", file=sys.stderr)
    result(
        "rebalances",
        members=options.members,
        range_vs_kazoo={count: ratios(medians["range"], medians["kazoo"]) for count, medians in found.items()},
        sticky_vs_kazoo={count: ratios(medians["sticky"], medians["kazoo"]) for count, medians in found.items()},
        range_vs_kazoo_less={
            count: ratios(medians["range"], medians["kazoo, less"]) for count, medians in found.items()
        },
        unaffected=still,
        requests_for_each_member=counted,
        watch_events_for_each_member=by_watch,
    )


if __name__ == "__main__":
    main()
