"""`zkgroups watch` prints changes as they happen, `groups describe --watch` the group again after each change."""

from __future__ import annotations

import itertools
import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE

from tests.waiting import eventually
from zkgroups import Consumergroup, Owner, Registry, TopicPartition
from zkgroups.core.times import to_ms
from zkgroups.testing import Op, TcpProxy

from .conftest import Zkgroups
from .running import TIMEOUT, Ended, Terminal, environment, started

pytestmark = pytest.mark.zookeeper

AT = TopicPartition("orders", 0)


@contextmanager
def watching(registry: Registry, hosts: str, *options: str, group: str = "invoices") -> Iterator[subprocess.Popen[str]]:
    """A watch that has begun."""
    registry.group(group).create()
    with started("watch", group, "-o", "jsonl", *options, env={"ZKGROUPS_ZOOKEEPER": hosts}) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == f"Watching {group}. Ctrl-C ends.\n"
        yield process


def told(process: subprocess.Popen[str], number: int = 1) -> list[dict[str, Any]]:
    """The next events."""
    assert process.stdout is not None
    return [json.loads(process.stdout.readline()) for _ in range(number)]


def watched(zkgroups: Zkgroups, *arguments: str, lines: int) -> Ended:
    """Watch for a second, or for longer if that was too short for so many lines."""
    for seconds in ("1", "10", "60"):
        done = zkgroups("watch", *arguments, "--all", "--for", seconds)
        if len(done.lines) >= lines:
            break
    return done


def short(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["event"], row["topic"], row["partition"], row["instance"], row["offset"], row["before"]


def test_every_change_is_printed_with_the_details_of_its_node(registry: Registry, zookeeper_hosts: str) -> None:
    group = registry.group("invoices")
    with watching(registry, zookeeper_hosts) as process:
        me = group.instance("me")
        me.register(["orders"])
        [joined] = told(process)
        claim = me.claim(AT)
        [claimed] = told(process)
        claim.commit(5)
        [first] = told(process)
        claim.commit(7)
        [second] = told(process)
        me.update({"refunds": 2})
        [changed] = told(process)
        owner = group.owner(AT)
        claim.release()
        [released] = told(process)
        me.deregister()
        [left] = told(process)
        group.offsets.delete([AT])
        [forgotten] = told(process)
    assert [short(row) for row in (joined, claimed, first, second, changed, released, left, forgotten)] == [
        ("join", None, None, "me", None, None),
        ("claim", "orders", 0, "me", None, None),
        ("commit", "orders", 0, None, 5, None),
        ("commit", "orders", 0, None, 7, 5),
        ("subscribe", None, None, "me", None, None),
        ("release", "orders", 0, "me", None, None),
        ("leave", None, None, "me", None, None),
        ("forget", "orders", 0, None, None, 7),
    ]
    assert isinstance(owner, Owner)
    assert claimed["time_ms"] == to_ms(owner.claimed_at)
    assert claimed["session"] == joined["session"] == f"{owner.session:#x}"
    assert (joined["detail"], changed["detail"]) == ("static orders x1", "static refunds x2")
    assert claimed["path"] == "/consumers/invoices/owners/orders/0"
    assert {row["group"] for row in (joined, left)} == {"invoices"}
    assert {row["schema"] for row in (joined, left)} == {1}
    assert abs(left["time_ms"] / 1000 - time.time()) < 60


def test_a_table_has_a_line_per_change(zkgroups: Zkgroups, billing: Consumergroup) -> None:
    owner = billing.owner(AT)
    assert isinstance(owner, Owner)
    done = watched(zkgroups, "billing", lines=5)
    assert (done.code, done.err) == (0, "Watching billing. Ctrl-C ends.\n")
    assert done.lines[0].split() == ["TIME", "EVENT", "WHERE", "DETAIL"]
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z  [a-z]+ ", line) for line in done.lines[1:])
    assert {tuple(line.split()[1:]) for line in done.lines[1:]} == {
        ("join", "anna", "static", "orders", "x1"),
        ("join", "ben", "static", "orders", "x2"),
        ("claim", "orders/0", "anna", f"{owner.session:#x}"),
        ("commit", "orders/0", "100"),
    }


def test_without_a_name_all_groups_are_watched_and_new_ones_too(registry: Registry, zookeeper_hosts: str) -> None:
    registry.group("invoices").create()
    with started("watch", "-o", "jsonl", env={"ZKGROUPS_ZOOKEEPER": zookeeper_hosts}) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "Watching 1 group. Ctrl-C ends.\n"
        registry.group("shipping").offsets.set(AT, 5)
        [new] = told(process)
        registry.group("invoices").offsets.set(AT, 6)
        [known] = told(process)
    assert (new["group"], new["offset"]) == ("shipping", 5)
    assert (known["group"], known["offset"]) == ("invoices", 6)


def test_a_json_document_is_written_at_the_end_even_after_a_signal(registry: Registry, zookeeper_hosts: str) -> None:
    offsets = registry.group("invoices").offsets
    offsets.set(AT, 7)
    server, _, chroot = zookeeper_hosts.partition("/")
    with TcpProxy(server) as proxy, watching(registry, f"{proxy.address}/{chroot}", "-o", "json") as process:
        read = proxy.requests_by_type[Op.GET_DATA]
        latest = itertools.count(8)

        def has_read_two_changes() -> bool:
            offsets.set(AT, next(latest))
            return proxy.requests_by_type[Op.GET_DATA] >= read + 3  # the first of all may be the read at the start

        assert eventually(has_read_two_changes)  # so it has shown the first one
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=TIMEOUT)
    event, *_ = json.loads(out)["events"]
    kind, *_, before = short(event)
    assert (process.returncode, kind, before) == (130, "commit", 7)


def test_unreadable_nodes_are_printed_with_the_reason(
    registry: Registry, zookeeper_hosts: str, kazoo: KazooClient
) -> None:
    with watching(registry, zookeeper_hosts) as process:
        kazoo.create("/consumers/invoices/ids/odd", b"{", ephemeral=True)
        kazoo.create("/consumers/invoices/owners/orders/x", b"\xff", makepath=True)
        kazoo.create("/consumers/invoices/offsets/orders/0", b"many", makepath=True)
        rows = told(process, 3)
        kazoo.set("/consumers/invoices/offsets/orders/0", b"7")
        rows += told(process)
    by_path: dict[str, list[Any]] = {}
    for row in rows:
        by_path.setdefault(row["path"].removeprefix("/consumers/invoices/"), []).append(row)
    [odd], [owner] = by_path["ids/odd"], by_path["owners/orders/x"]
    assert (odd["event"], odd["instance"]) == ("join", "odd")
    assert odd["detail"]
    assert (owner["topic"], owner["partition"], owner["instance"]) == ("orders", None, None)
    assert owner["detail"]
    assert [row["offset"] for row in by_path["offsets/orders/0"]] == [None, 7]


def test_a_lost_connection_is_reported_and_changes_meanwhile_are_printed(
    registry: Registry, zookeeper: Any, zookeeper_hosts: str
) -> None:
    group = registry.group("invoices")
    group.create()
    with TcpProxy(zookeeper.address) as proxy:
        through = f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}"
        with watching(registry, through) as process:
            assert process.stderr is not None
            proxy.refuse()
            proxy.cut()
            assert process.stderr.readline() == "connection lost\n"
            group.offsets.set(AT, 5)
            group.offsets.set(AT, 6)
            proxy.accept()
            assert process.stderr.readline() == "reconnected\n"
            [row] = told(process)
            assert short(row) == ("commit", "orders", 0, None, 6, None)
            group.offsets.set(AT, 8)
            assert short(told(process)[0]) == ("commit", "orders", 0, None, 8, 6)


def test_forbidden_nodes_are_reported_and_watched_as_soon_as_permissions_allow(
    secret: str, zookeeper_hosts: str, kazoo: KazooClient, billing: Consumergroup
) -> None:
    """tests/cli/test_hostile.py has more of them."""
    with started("watch", "-o", "jsonl", "--for", "60", env={"ZKGROUPS_ZOOKEEPER": zookeeper_hosts}) as process:
        assert process.stderr is not None
        said = [process.stderr.readline() for _ in range(4)]
        assert {line.split()[4].strip(":") for line in said if "no permission" in line} == {
            f"/consumers/{secret}/{part}" for part in ("ids", "owners", "offsets")
        }
        assert "Watching 2 groups. Ctrl-C ends.\n" in said
        for path in ("offsets/orders/0", "offsets/orders", "offsets"):
            kazoo.set_acls(f"/consumers/{secret}/{path}", OPEN_ACL_UNSAFE)
        assert process.stderr.readline() == f"/consumers/{secret}/offsets is no longer forbidden\n"
        assert [(row["path"], row["offset"]) for row in told(process)] == [("/consumers/secret/offsets/orders/0", 7)]
        billing.offsets.set(TopicPartition("orders", 1), 1)
        assert [row["path"] for row in told(process)] == ["/consumers/billing/offsets/orders/1"]


WATCH = ("groups", "describe", "billing", "--watch", "--interval", "0.1")
CLEAR = "\x1b[2J"


@pytest.fixture
def offsets(registry: Registry) -> Any:
    """A group with one offset."""
    found = registry.group("billing").offsets
    found.set(AT, 100)
    return found


@pytest.fixture
def address(zookeeper_hosts: str) -> dict[str, str]:
    return {"ZKGROUPS_ZOOKEEPER": zookeeper_hosts}


def test_on_a_terminal_it_overwrites_the_last_description_and_ctrl_c_ends_it(
    offsets: Any, address: dict[str, str]
) -> None:
    with Terminal(*WATCH, env=address) as terminal:
        terminal.wait_for(" 100 ")
        offsets.set(AT, 200)
        terminal.wait_for(" 200 ")
        assert terminal.seen.count(CLEAR) == 2
        terminal.type("\x03")
        ended = terminal.end()
    assert ended.code == 130
    assert "zkgroups: interrupted\n" in ended.out  # the rest of the description may follow
    assert "Traceback" not in ended.out


def test_a_closed_pipe_ends_it_at_once_even_if_nothing_changes(offsets: Any, address: dict[str, str]) -> None:
    with started(*WATCH[:-1], "3600", "-o", "jsonl", env=environment() | address) as watch:
        assert watch.stdout is not None
        watch.stdout.readline()
        watch.stdout.close()
        assert watch.wait(30) == 0
