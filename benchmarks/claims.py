"""Claim, commit and release many partitions: in bulk, one by one, with threads, and with plain kazoo.

    python -m benchmarks.claims [--partitions 1000] [--rounds 5]

- batched: `claim_many`, `Claims.commit`, `Claims.release`
- one by one: `claim`, `Claim.commit`, `Claim.release` for each partition
- threads: `claim`, `Claim.commit`, `Claim.release`, called by 8 threads that share one `Instance`
- kazoo: create, set with the known version, delete; one call after the other, without fencing
- kazoo pipelined: the calls of `kazoo`, sent without waiting for each reply

The first commit of a partition reads the committed offset and creates the node. The second one is typical for the rest
of a consumer's life.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from kazoo.client import KazooClient

from benchmarks import Stopwatch, Times, in_turn, ratios, result, table
from zkgroups import Claim, Instance, Registry, TopicPartition
from zkgroups.testing import ZooKeeperServer

THREADS = 8

Partitions = Sequence[TopicPartition]


def member(registry: Registry, group: str) -> Instance:
    instance = registry.group(group).instance("me")
    instance.register(["orders"])
    return instance


def batched(registry: Registry, partitions: Partitions, group: str) -> Times:
    watch = Stopwatch()
    with member(registry, group) as me:
        with watch.step("claim"):
            claims = me.claim_many(partitions)
        with watch.step("first commit"):
            claims.commit(dict.fromkeys(partitions, 1))
        with watch.step("commit"):
            claims.commit(dict.fromkeys(partitions, 2))
        with watch.step("release"):
            claims.release()
    return watch.seconds


def one_by_one(registry: Registry, partitions: Partitions, group: str) -> Times:
    return _each(registry, partitions, group, lambda act, items: list(map(act, items)))


def threads(registry: Registry, partitions: Partitions, group: str) -> Times:
    with ThreadPoolExecutor(THREADS) as pool:
        # Each thread gets one large part, so that the cost of handing over single partitions is not measured.
        share = -(-len(partitions) // THREADS)

        def spread(act: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
            parts = [items[start : start + share] for start in range(0, len(items), share)]
            return [done for part in pool.map(lambda part: list(map(act, part)), parts) for done in part]

        return _each(registry, partitions, group, spread)


def _each(
    registry: Registry,
    partitions: Partitions,
    group: str,
    run: Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]],
) -> Times:
    watch = Stopwatch()
    with member(registry, group) as me:
        with watch.step("claim"):
            claims: list[Claim] = run(me.claim, partitions)
        with watch.step("first commit"):
            run(lambda claim: claim.commit(1), claims)
        with watch.step("commit"):
            run(lambda claim: claim.commit(2), claims)
        with watch.step("release"):
            run(Claim.release, claims)
    return watch.seconds


def kazoo(client: Any, partitions: Partitions, group: str) -> Times:
    watch = Stopwatch()
    owners, offsets = _paths(partitions, group)
    with watch.step("claim"):
        for path in owners:
            client.create(path, b"me", ephemeral=True, makepath=True)
    with watch.step("first commit"):
        for path in offsets:
            client.create(path, b"1", makepath=True)
    with watch.step("commit"):
        for path in offsets:
            client.set(path, b"2", version=0)
    with watch.step("release"):
        for path in owners:
            client.delete(path)
    return watch.seconds


def kazoo_pipelined(client: Any, partitions: Partitions, group: str) -> Times:
    watch = Stopwatch()
    owners, offsets = _paths(partitions, group)

    def wait_for(replies: list[Any]) -> None:
        for reply in replies:
            reply.get()

    with watch.step("claim"):
        client.ensure_path(owners[0].rpartition("/")[0])
        wait_for([client.create_async(path, b"me", ephemeral=True) for path in owners])
    with watch.step("first commit"):
        client.ensure_path(offsets[0].rpartition("/")[0])
        wait_for([client.create_async(path, b"1") for path in offsets])
    with watch.step("commit"):
        wait_for([client.set_async(path, b"2", version=0) for path in offsets])
    with watch.step("release"):
        wait_for([client.delete_async(path) for path in owners])
    return watch.seconds


def _paths(partitions: Partitions, group: str) -> tuple[list[str], list[str]]:
    root = f"/consumers/{group}"
    return [f"{root}/owners/{at}" for at in partitions], [f"{root}/offsets/{at}" for at in partitions]


def measure(partitions: Partitions, rounds: int) -> dict[str, Times]:
    with ExitStack() as stack:
        server = stack.enter_context(ZooKeeperServer())

        def with_zkgroups(run: Callable[[Registry, Partitions, str], Times]) -> Callable[[int], Times]:
            registry = stack.enter_context(Registry.connect(server.address))
            return lambda number: run(registry, partitions, f"{run.__name__}-{number}")

        def with_kazoo(run: Callable[[Any, Partitions, str], Times]) -> Callable[[int], Times]:
            client = KazooClient(server.address)
            client.start()
            stack.callback(client.close)
            stack.callback(client.stop)
            return lambda number: run(client, partitions, f"{run.__name__}-{number}")

        contenders = {
            "batched": with_zkgroups(batched),
            "one by one": with_zkgroups(one_by_one),
            f"{THREADS} threads": with_zkgroups(threads),
            "kazoo": with_kazoo(kazoo),
            "kazoo pipelined": with_kazoo(kazoo_pipelined),
        }
        return in_turn(contenders, rounds=rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    partitions = [TopicPartition("orders", n) for n in range(options.partitions)]
    medians = measure(partitions, options.rounds)
    table(f"{len(partitions)} partitions", medians)
    result(
        "claims",
        partitions=len(partitions),
        batched_vs_one_by_one=ratios(medians["batched"], medians["one by one"]),
        batched_vs_kazoo=ratios(medians["batched"], medians["kazoo"]),
        batched_vs_kazoo_pipelined=ratios(medians["batched"], medians["kazoo pipelined"]),
        one_by_one_vs_kazoo=ratios(medians["one by one"], medians["kazoo"]),
        threads_vs_one_by_one=ratios(medians[f"{THREADS} threads"], medians["one by one"]),
    )


if __name__ == "__main__":
    main()
