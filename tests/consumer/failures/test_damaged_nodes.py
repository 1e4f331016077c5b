"""Failures 10 and 14: nodes that other clients delete, recreate, or fill with garbage."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from zkgroups import InstanceState
from zkgroups.testing import TcpProxy

from ...testing.waiting import eventually
from ..crew import Crew
from ..history import Kind
from .crews import BUSY, QUICK, has_lost, owners

pytestmark = pytest.mark.zookeeper


# 10: missed watch events, recreated nodes


def delete_all(client: Any, directory: str, *, made_again: bool) -> None:
    """Delete everything at once, because members recreate missing nodes soon."""
    while True:
        paths = [directory]
        for path in paths:
            paths += [f"{path}/{name}" for name in client.get_children(path)]
        deletion = client.transaction()
        for path in reversed(paths):
            deletion.delete(path)
        if made_again:
            deletion.create(directory)
        if not any(isinstance(result, Exception) for result in deletion.commit()):
            return


# Deleting owner nodes gives partitions to two members until all have noticed. Deleting offsets lets them go back.
EXCUSED = {"ids": set[str](), "owners": {"two have one claim"}, "": {"two have one claim", "a commit went back"}}


@pytest.mark.parametrize("made_again", [True, False], ids=["and made again", "and left so"])
@pytest.mark.parametrize("part", EXCUSED, ids=["registrations", "owners", "group"])
def test_failure_10_a_group_recovers_soon_after_its_nodes_were_deleted(
    crew: Crew, raw: Any, part: str, made_again: bool
) -> None:
    crew.excused = EXCUSED[part]
    crew.join("anne", *QUICK)
    crew.join("bert", *QUICK)
    crew.settle()
    delete_all(raw, f"/consumers/billing/{part}".rstrip("/"), made_again=made_again)
    crew.settle()

    def is_as_before() -> bool:
        """One of them may have found the damage first, and own everything for a moment."""
        held = sum(len(worker.member.assignment) for worker in crew.workers.values())
        ids = {instance.id for instance in crew.group.instances()}
        owned_by = {id for id, _session in owners(crew).values()}
        return (held, ids, owned_by) == (4, {"anne", "bert"}, {"anne-0", "bert-0"})

    assert eventually(is_as_before)
    crew.settle()
    assert is_as_before()


def test_failure_10_a_registration_that_a_commit_finds_missing_is_recreated_and_claims_are_kept(
    crew: Crew, zookeeper: Any, zookeeper_hosts: str, raw: Any
) -> None:
    with TcpProxy(zookeeper.address) as proxy:
        hosts = f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}"
        crew.join("anne", "--reconcile-every", "3600", hosts=hosts)
        crew.settle()
        before = owners(crew)
        proxy.swallow_watch_events()  # a commit notices it first
        raw.delete("/consumers/billing/ids/anne")
        assert eventually(lambda: crew.events(Kind.REFUSED))
        crew.settle()
        assert owners(crew) == before
        crew.leave("anne")


def test_partitions_taken_away_by_an_administrator_are_reported_as_lost_and_claimed_again(crew: Crew) -> None:
    crew.excused = {"two have one claim"}  # the event takes a moment
    crew.join("anne", *QUICK)
    crew.join("bert", *QUICK)
    crew.settle()
    for turn in range(1, 11):
        at, (owner, _session) = min(owners(crew).items())
        crew.group.release(at, expected_owner=owner)
        assert eventually(partial(has_lost, crew, turn))
        crew.settle()
    assert {event.at for event in crew.events(Kind.LOST)} == {"orders/0"}


def test_failure_10_a_member_without_watch_events_releases_within_the_reconcile_period(
    crew: Crew, zookeeper: Any, zookeeper_hosts: str
) -> None:
    with TcpProxy(zookeeper.address) as proxy:
        deaf = f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}"
        crew.join("anne", "--reconcile-every", "2", hosts=deaf)
        crew.settle()
        proxy.swallow_watch_events()
        crew.join("bert", *QUICK)
        assert eventually(lambda: len(crew.workers["bert"].member.assignment) == 2, timeout=2 + BUSY)
        crew.leave("bert")
        assert eventually(lambda: len(crew.workers["anne"].member.assignment) == 4, timeout=2 + BUSY)
        crew.settle()
        crew.leave("anne")


# 14: garbage

REGISTRATIONS = {
    "empty": b"",
    "half": b'{"version":1,"subscr',
    "pykafka": b"orders",
    "list": b"[1, 2]",
    "no-streams": b'{"version":1,"subscription":{"orders":0},"pattern":"static"}',
    "float": b'{"version":1,"subscription":{"orders":1.5},"pattern":"static"}',
    "expression": b'{"version":1,"subscription":{"(":1},"pattern":"white_list"}',
    "deep": b"[" * 100_000,
    "huge": b'{"version":1,"pattern":"static","subscription":{"x":1},"more":"' + b"x" * 900_000 + b'"}',
    "not-text": b"\xff\xfe\x00",
    "numbers": b'{"version":' + b"9" * 5000 + b"}",
    "nobodys-assignor": b'{"version":1,"subscription":{"other":1},"pattern":"static","assignors":[7,null]}',
    "\N{SNOWMAN} \N{GREEK SMALL LETTER ALPHA}": b"null",
}
OWNERS = {
    "orders/abc": b"x",
    "orders/-1": b"",
    "orders/99": b"\xff",
    "b'orders'/1-x": b"somebody",
    "\N{SNOWMAN}/0": b"anne-0",
    "..orders/0": b"{",
}
OFFSETS = {
    "orders/abc": b"5",
    "orders/-1": b"-1",
    "orders/99": b"9" * 5000,
    "nowhere/0": b"",
    "\N{SNOWMAN}/0": b"x" * 900_000,
}


@pytest.mark.parametrize("assignors", ["range,roundrobin,sticky", "sticky"])
def test_failure_14_a_group_settles_whatever_other_nodes_contain(crew: Crew, raw: Any, assignors: str) -> None:
    """A bare topic name is a registration of pykafka. It gets its share of the plan, but owns it at other paths."""
    options = (*QUICK, "--assignors", assignors)
    for name, data in REGISTRATIONS.items():
        if name != "pykafka":
            raw.create(f"/consumers/billing/ids/{name}", data, ephemeral=True, makepath=True)
    for part, nodes in (("owners", OWNERS), ("offsets", OFFSETS)):
        for name, data in nodes.items():
            raw.create(f"/consumers/billing/{part}/{name}", data, ephemeral=part == "owners", makepath=True)
    crew.join("anne", *options)
    crew.join("bert", *options)
    _settled_among_garbage(crew)
    raw.create("/consumers/billing/ids/late", b"{", ephemeral=True)
    crew.join("carl", *options)
    assert eventually(lambda: crew.workers["carl"].member.assignment)
    _settled_among_garbage(crew)


def _settled_among_garbage(crew: Crew) -> None:
    """The state of such a group is unknown to observers."""

    def settled() -> bool:
        held = [at for worker in crew.workers.values() for at in worker.member.assignment]
        stable = all(worker.member.state is InstanceState.STABLE for worker in crew.workers.values())
        return stable and sorted(held) == sorted(crew.partitions)

    assert eventually(settled)
    before = len(crew.events(Kind.COMMITTED))
    assert eventually(lambda: len(crew.events(Kind.COMMITTED)) > before + 8)


@pytest.mark.parametrize("data", [b"", b"7 ", b"abc", b"-5", b"1.0", b"9" * 5000, b"x" * 900_000])
def test_failure_14_a_partition_with_an_unreadable_offset_is_skipped_until_it_is_readable(
    crew: Crew, raw: Any, data: bytes
) -> None:
    path = "/consumers/billing/offsets/orders/2"
    raw.create(path, data, makepath=True)
    crew.join("anne", *QUICK)
    assert eventually(lambda: len({event.at for event in crew.events(Kind.COMMITTED)}) == 3)
    assert "orders/2" not in {event.at for event in crew.events(Kind.BEGUN)}
    assert raw.get(path)[0] == data
    raw.set(path, b"0")
    crew.settle()


def test_failure_14_a_partition_with_an_unreadable_owner_is_claimed_once_it_is_released(crew: Crew, raw: Any) -> None:
    path = "/consumers/billing/owners/orders/3"
    raw.create(path, b"\xff\x00", ephemeral=True, makepath=True)
    worker = crew.join("anne", "--reconcile-every", "60")
    assert eventually(lambda: len({event.at for event in crew.events(Kind.COMMITTED)}) == 3)
    assert len(worker.member.assignment) == 3
    raw.delete(path)
    crew.settle()
