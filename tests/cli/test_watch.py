"""`zkgroups watch`: prints the changes of a group as they happen."""

from __future__ import annotations

import csv
import io
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

from zkgroups import Consumergroup, Dialect, Owner, Registration, Registry, TopicPartition
from zkgroups.core.times import to_ms
from zkgroups.core.znodes.registration_codec import encode_registration
from zkgroups.testing import Op, TcpProxy

from ..testing.waiting import eventually
from .conftest import Zkgroups
from .running import TIMEOUT, Ended, Terminal, started

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


def test_a_client_of_a_gateway_joins_with_its_id_and_host(
    registry: Registry, kazoo: KazooClient, zookeeper_hosts: str
) -> None:
    client = Registration({"orders": 1}, dialect=Dialect.GATEWAY, client_id="app", client_host="/10.0.0.7")
    with watching(registry, zookeeper_hosts) as process:
        kazoo.ensure_path("/consumers/invoices/ids")
        kazoo.create("/consumers/invoices/ids/app-1", encode_registration(client), ephemeral=True)
        [joined] = told(process)
    assert (joined["instance"], joined["detail"]) == ("app-1", "static orders x1, app at /10.0.0.7")


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


def test_existing_nodes_are_not_printed(registry: Registry, zookeeper_hosts: str, billing: Consumergroup) -> None:
    with watching(registry, zookeeper_hosts, group="billing") as process:
        billing.offsets.set(AT, 200)
        [row] = told(process)
    assert short(row) == ("commit", "orders", 0, None, 200, 100)


def test_existing_nodes_are_printed_first_on_request(zkgroups: Zkgroups, billing: Any) -> None:
    rows = [json.loads(line) for line in watched(zkgroups, "billing", "-o", "jsonl", lines=4).lines]
    assert {short(row) for row in rows} == {
        ("join", None, None, "anna", None, None),
        ("join", None, None, "ben", None, None),
        ("claim", "orders", 0, "anna", None, None),
        ("commit", "orders", 0, None, 100, None),
    }


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


def test_several_groups_are_watched_and_the_table_names_the_group_of_each_change(
    zkgroups: Zkgroups, registry: Registry, billing: Consumergroup
) -> None:
    registry.group("invoices").offsets.set(AT, 7)
    registry.group("other").offsets.set(AT, 8)
    done = watched(zkgroups, "billing", "--groups", "inv.*", lines=6)
    assert (done.code, done.err) == (0, "Watching 2 groups. Ctrl-C ends.\n")
    lines = {tuple(line.split()[1:4]) for line in done.lines[1:]}
    assert lines >= {("commit", "billing", "orders/0"), ("commit", "invoices", "orders/0"), ("join", "billing", "ben")}
    assert "other" not in done.out


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


def test_csv_has_a_header_and_names_are_paths(zkgroups: Zkgroups, billing: Any) -> None:
    rows = list(csv.DictReader(io.StringIO(watched(zkgroups, "billing", "-o", "csv", lines=5).out)))
    assert {(row["event"], row["instance"], row["offset"]) for row in rows} == {
        ("join", "anna", ""),
        ("join", "ben", ""),
        ("claim", "anna", ""),
        ("commit", "", "100"),
    }
    assert "/consumers/billing/ids/anna" in watched(zkgroups, "billing", "-o", "name", lines=4).lines


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


def test_a_quiet_group_has_no_events(zkgroups: Zkgroups, registry: Registry) -> None:
    registry.group("billing").create()
    done = zkgroups("watch", "billing", "--for", "0.3", "-o", "json")
    assert (done.code, done.json) == (0, {"schema": 1, "events": []})
    assert zkgroups("watch", "billing", "--for", "0.3", "--no-headers").out == ""


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


def test_ctrl_c_ends_it_with_exit_code_130(zookeeper_hosts: str, billing: Any) -> None:
    with Terminal("watch", "billing", "--all", env={"ZKGROUPS_ZOOKEEPER": zookeeper_hosts}) as terminal:
        terminal.wait_for("commit")
        terminal.type("\x03")
        assert terminal.end().code == 130


def test_a_closed_pipe_is_not_an_error(registry: Registry, zookeeper_hosts: str) -> None:
    with watching(registry, zookeeper_hosts) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        latest = itertools.count(1)

        def has_ended_after_a_commit() -> bool:
            registry.group("invoices").offsets.set(AT, next(latest))
            return process.poll() is not None

        assert eventually(has_ended_after_a_commit, timeout=TIMEOUT)
        assert (process.returncode, process.stderr.read()) == (0, "")


def test_a_closed_pipe_ends_it_even_if_nothing_changes(registry: Registry, zookeeper_hosts: str) -> None:
    with watching(registry, zookeeper_hosts) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(30) == 0


def test_a_group_that_is_deleted_and_recreated_is_followed_further(registry: Registry, zookeeper_hosts: str) -> None:
    group = registry.group("invoices")
    with watching(registry, zookeeper_hosts) as process:
        group.offsets.set(AT, 5)
        told(process)
        group.delete()
        assert short(told(process)[0]) == ("forget", "orders", 0, None, None, 5)
        group.offsets.set(AT, 1)
        assert short(told(process)[0]) == ("commit", "orders", 0, None, 1, None)


@pytest.mark.usefixtures("cluster")
def test_a_missing_group_is_exit_code_3(zkgroups: Zkgroups) -> None:
    done = zkgroups("watch", "nobody")
    assert (done.code, done.out, done.err) == (
        3,
        "",
        "zkgroups: group 'nobody' does not exist: check the name and the address\n",
    )


@pytest.mark.parametrize(
    "arguments", [["a/b"], ["billing", "--for", "-1"], ["billing", "--for", "nan"], ["--groups", "("]]
)
def test_impossible_options_are_exit_code_2(zkgroups: Zkgroups, arguments: list[str]) -> None:
    assert zkgroups("watch", *arguments, "-z", "127.0.0.1:1").code == 2


def test_an_unreachable_server_is_exit_code_7(zkgroups: Zkgroups) -> None:
    done = zkgroups("watch", "billing", "-z", "127.0.0.1:1", "--timeout", "0.3")
    assert (done.code, done.out) == (7, "")


def test_a_forbidden_group_is_exit_code_6(zkgroups: Zkgroups, secret: str) -> None:
    assert zkgroups("watch", secret).code == 6
    assert zkgroups("watch", secret, "--all").code == 6
