"""Measure how much hostile registrations slow down `describe` of all groups, and a member that reads its own group.

    python -m benchmarks.hostile [--rounds 9] [--groups 200] [--topics 2000]

Both trees have the same topics, with four partitions each, the same healthy groups, some of which subscribe by a
pattern, and two groups with a member that reads its group repeatedly. The hostile tree has hostile registrations, in
groups of their own and in the groups of the two members. The healthy tree has harmless ones instead. Ratios are the
time in the hostile tree over the time in the healthy one: 1 means no cost, 1.5 means half as much again.
"""

from __future__ import annotations

import argparse
import json
import string
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import cycle
from random import Random
from typing import Any

from kazoo.client import KazooClient

from benchmarks import Stopwatch, Times, in_turn, result, table
from benchmarks._trees import commit_all
from zkgroups import Registry
from zkgroups.consumer.member import Member
from zkgroups.testing import ZooKeeperServer

PARTITIONS = b'{"version":1,"partitions":{"0":[0],"1":[0],"2":[0],"3":[0]}}'
BACKTRACKING = "a" * 40
STRATEGIES = ("range", "roundrobin")
AUTOMATA = 40
"""Expressions for which RE2 would make large automata: half of them are evaluated, and half are not."""


def names(count: int) -> list[str]:
    """Return topic names. A quarter of them contains only the letters of the hostile expressions."""
    random = Random(3)
    letters = ["".join(random.choices("ab", k=200)) for _ in range(count // 4)]
    services = [f"service-{number % 50:02}.events.{number:04}" for number in range(count - 1 - len(letters))]
    return [BACKTRACKING, *services, *letters]


def harmless(topics: list[str]) -> dict[str, Mapping[str, Any]]:
    """Return the harmless counterpart of each registration in `hostile`."""
    one = {"pattern": "static", "subscription": {topics[1]: 1}}
    listed = dict.fromkeys(("backtracking", "lookahead", "java-only", "long", "largest", "alternatives"), _listed("x"))
    listed |= {f"automaton-{number}": _listed("x") for number in range(AUTOMATA)}
    return {**listed, "streams": {"pattern": "static", "subscription": dict.fromkeys(topics, 1)}, "wide": one}


def hostile(topics: list[str]) -> dict[str, Mapping[str, Any]]:
    """Return hostile registrations by name."""
    largest = "|".join(f".*[aeio{letter}]{{9}}.*" for letter in string.ascii_lowercase[:20])
    automata = {
        f"automaton-{number}": _listed("(?:a|b)*a" + "(?:a|b)" * length + f".*x{number}.*")
        for number, length in zip(range(AUTOMATA), cycle((16, 290)))
    }
    return {
        **automata,
        "backtracking": _listed("(a+)+b"),
        "lookahead": _listed("(?!(a+)+b).*x"),
        "java-only": _listed(r"(a+)+\1b"),
        "long": _listed("(a|b)*" * 133_000),
        "largest": _listed(largest),
        "alternatives": _listed("a|" * 16_000),
        "streams": {"pattern": "static", "subscription": dict.fromkeys(topics, 2**31 - 1)},
        "wide": {"pattern": "static", "subscription": {f"topic-{number}": 1 for number in range(50_000)}},
    }


def _listed(expression: str) -> Mapping[str, Any]:
    return {"pattern": "white_list", "subscription": {expression: 1}}


def seed(client: Any, topics: list[str], groups: int) -> None:
    client.ensure_path("/brokers/topics")
    client.ensure_path("/consumers")
    commit_all(_created(client, f"/brokers/topics/{topic}", PARTITIONS) for topic in topics)
    for number in range(groups):
        pattern = {"pattern": "white_list", "subscription": {f"service-{number % 50:02}.*": 1}}
        static = {"pattern": "static", "subscription": dict.fromkeys(topics[number::50], 1)}
        register(client, f"healthy-{number:03}", "m", pattern if number % 4 == 0 else static)


def _created(client: Any, path: str, data: bytes) -> Any:
    made = client.transaction()
    made.create(path, data)
    return made


def register(client: Any, group: str, id: str, fields: Mapping[str, Any]) -> None:
    data = json.dumps({"version": 1, "timestamp": "1", **fields}, separators=(",", ":")).encode()
    client.create(f"/consumers/{group}/ids/{id}", data, ephemeral=True, makepath=True)


def contender(stack: ExitStack, options: argparse.Namespace, *, beside_hostile: bool) -> Any:
    server = stack.enter_context(ZooKeeperServer())
    client = KazooClient(server.address)
    client.start()
    stack.callback(client.close)
    stack.callback(client.stop)
    topics = names(options.topics)
    seed(client, topics, options.groups)
    for name, fields in (hostile if beside_hostile else harmless)(topics).items():
        for group in (f"other-{name}", *STRATEGIES):
            register(client, group, f"zz-{name}", fields)
    registry = stack.enter_context(Registry.connect(server.address))
    members = [
        Member(registry.group(strategy), dict.fromkeys(topics, 1), id="a", foreign_assignor=strategy)
        for strategy in STRATEGIES
    ]
    for member in members:
        stack.callback(member.close)
        member._membership.register()

    def measure(_round: int) -> Times:
        watch = Stopwatch()
        with watch.step("describe"):
            described = list(registry.describe())
        assert len(described) >= options.groups
        for strategy, member in zip(STRATEGIES, members, strict=True):
            with watch.step(strategy):
                assert member._membership.look().wanted
        return watch.seconds

    return measure


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--topics", type=int, default=2_000)
    options = parser.parse_args()
    with ExitStack() as stack:
        contenders = {
            "healthy only": contender(stack, options, beside_hostile=False),
            "beside hostile": contender(stack, options, beside_hostile=True),
        }
        medians = in_turn(contenders, rounds=options.rounds)
    table("describe and look", medians)
    alone, beside = medians.values()
    result("hostile", **{f"{step}_beside_hostile": round(beside[step] / alone[step], 2) for step in alone})


if __name__ == "__main__":
    main()
