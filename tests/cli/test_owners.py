"""`zkgroups owners list`: the owners, and the command that releases each."""

from __future__ import annotations

import csv
import io
import shlex
from typing import Any

import pytest
from kazoo.client import KazooClient

from zkgroups import Consumergroup, Owner, Registry, TopicPartition
from zkgroups.core.times import to_ms

from .conftest import Zkgroups
from .running import run

pytestmark = pytest.mark.zookeeper

AT = TopicPartition("orders", 0)


def owner_of(group: Consumergroup, at: TopicPartition = AT) -> Owner:
    owner = group.owner(at)
    assert isinstance(owner, Owner)
    return owner


def test_owners_are_shown_with_session_and_state(zkgroups: Zkgroups, kazoo: KazooClient, billing: Any) -> None:
    kazoo.create("/consumers/billing/owners/orders/1", b"gone-0", ephemeral=True)
    done = zkgroups("owners", "list")
    header, live, orphan = map(str.split, done.lines)
    assert (done.code, done.err) == (0, "")
    assert header == ["GROUP", "TOPIC", "PARTITION", "OWNER", "SESSION", "SINCE", "STATE"]
    assert live[:5] == ["billing", "orders", "0", "anna", f"{owner_of(billing).session:#x}"]
    assert live[-1] == "live"
    assert (orphan[:4], orphan[-1]) == (["billing", "orders", "1", "gone-0"], "orphan")


def test_in_json_owners_have_all_fields_and_numbers_are_numbers(
    zkgroups: Zkgroups, kazoo: KazooClient, billing: Consumergroup
) -> None:
    kazoo.create("/consumers/billing/owners/orders/1", b"\xff", ephemeral=True)
    owner = owner_of(billing)
    session = f"{owner.session:#x}"
    good, bad = zkgroups("owners", "list", "billing", "-o", "json").json["owners"]
    assert good == {
        "group": "billing",
        "topic": "orders",
        "partition": 0,
        "owner": "anna",
        "session": session,
        "claimed_ms": to_ms(owner.claimed_at),
        "state": "live",
        "path": "/consumers/billing/owners/orders/0",
        "reason": None,
        "release": f"zkgroups release --expect-owner=anna --expect-session={session} billing orders 0",
    }
    assert bad["reason"]
    assert {name: bad[name] for name in bad.keys() - {"reason"}} == {
        "group": "billing",
        "topic": "orders",
        "partition": 1,
        "owner": None,
        "session": f"{kazoo.client_id[0]:#x}",
        "claimed_ms": None,
        "state": "malformed",
        "path": "/consumers/billing/owners/orders/1",
        "release": None,
    }


def test_the_owner_in_a_node_without_a_session_is_shown_as_dead(
    zkgroups: Zkgroups, kazoo: KazooClient, billing: Consumergroup
) -> None:
    kazoo.create("/consumers/billing/owners/orders/1", b"gone-0")
    [_, dead] = zkgroups("owners", "list", "-o", "json").json["owners"]
    assert (dead["owner"], dead["session"], dead["state"]) == ("gone-0", None, "dead")
    assert dead["reason"].startswith("it belongs to no session")
    assert zkgroups("doctor", "--repair", "--execute").code in (0, 10)
    assert [str(each.at) for each in billing.owners()] == ["orders/0"]


def test_the_suggested_release_command_works_unchanged(
    zkgroups: Zkgroups, zookeeper_hosts: str, registry: Registry
) -> None:
    """Even if names have a meaning for the shell or the command line."""
    group = registry.group("-my group")
    with group.instance("--id $(boom) 'x'") as instance:
        instance.register(["--a;b"])
        instance.claim(TopicPartition("--a;b", 3))
        line = zkgroups("owners", "list", "-o", "wide", "-z", zookeeper_hosts, "--no-headers").lines[0]
        words = shlex.split(line[line.index("zkgroups ") :])
        assert words[1:3] == ["-z", zookeeper_hosts]
        assert run(*words[1:]).code == 0
        assert list(group.owners()) == []


def test_options_from_the_environment_are_not_in_the_suggested_command(zkgroups: Zkgroups, billing: Any) -> None:
    [row] = zkgroups("owners", "list", "-o", "jsonl").out.splitlines()
    assert '"release": "zkgroups release --expect-owner=anna ' in row


def test_owners_can_be_limited_by_group_and_topic(zkgroups: Zkgroups, kazoo: KazooClient) -> None:
    for group in ("alpha", "beta", "gamma"):
        for partition in (0, 1):
            path = f"/consumers/{group}/owners/orders/{partition}"
            kazoo.create(path, b"x", ephemeral=True, makepath=True)
        kazoo.create(f"/consumers/{group}/owners/refunds/0", b"x", ephemeral=True, makepath=True)
        kazoo.create(f"/consumers/{group}/owners/refunds/7", b"\xff", ephemeral=True)

    def places(*arguments: str) -> list[str]:
        rows = csv.DictReader(io.StringIO(zkgroups("owners", "list", *arguments, "-o", "csv").out))
        return [f"{row['group']} {row['topic']}/{row['partition']}" for row in rows]

    assert places("gamma", "alpha", "--topic", "orders:1") == ["gamma orders/1", "alpha orders/1"]
    assert places("gamma", "--groups", ".*ta", "--topic", "orders:0") == ["gamma orders/0", "beta orders/0"]
    assert places("--groups", "bet") == []
    assert places("beta", "--topic", "refunds") == ["beta refunds/0", "beta refunds/7"]
    assert places("beta", "--topic", "refunds:0") == ["beta refunds/0"]
    assert len(places()) == 12


def test_an_owner_node_of_pykafka_is_shown_as_its_partition(zkgroups: Zkgroups, kazoo: KazooClient) -> None:
    path = "/consumers/billing/owners/b'orders'/1001-3"
    kazoo.create(path, b"host:uuid", ephemeral=True, makepath=True)
    [row] = zkgroups("owners", "list", "-o", "json").json["owners"]
    assert (row["topic"], row["partition"], row["owner"], row["path"]) == ("orders", 3, "host:uuid", path)


def test_without_owners_the_data_is_empty_and_a_message_goes_to_stderr(zkgroups: Zkgroups, registry: Registry) -> None:
    registry.group("billing").create()
    done = zkgroups("owners", "list")
    assert (done.code, done.out, done.err) == (0, "", "There are no owners.\n")
    assert zkgroups("owners", "list", "billing", "-o", "json").json == {"schema": 1, "owners": []}


def test_a_missing_group_is_exit_code_3_and_does_not_hide_the_others(zkgroups: Zkgroups, billing: Any) -> None:
    done = zkgroups("owners", "list", "nobody")
    assert (done.code, done.out, done.err) == (
        3,
        "",
        "zkgroups: group 'nobody' does not exist: check the name and the address\n",
    )
    done = zkgroups("owners", "list", "nobody", "billing", "-o", "name")
    assert (done.code, done.lines, done.err) == (
        9,
        ["anna"],
        "zkgroups: group 'nobody' does not exist: check the name and the address\n",
    )


def test_a_bad_name_is_exit_code_2(zkgroups: Zkgroups) -> None:
    assert zkgroups("owners", "list", "a/b", "-z", "127.0.0.1:1").code == 2
    assert zkgroups("owners", "list", "--groups", "(", "-z", "127.0.0.1:1").code == 2


def test_an_unreachable_server_is_exit_code_7(zkgroups: Zkgroups) -> None:
    done = zkgroups("owners", "list", "-z", "127.0.0.1:1", "--timeout", "0.3")
    assert (done.code, done.out) == (7, "")


def test_forbidden_nodes_are_exit_code_6_and_the_rest_is_shown(zkgroups: Zkgroups, secret: str, billing: Any) -> None:
    done = zkgroups("owners", "list", secret)
    assert done.code == 6
    assert done.err.splitlines()[-1].startswith(f"zkgroups: no permission on /consumers/{secret}/owners")
    assert zkgroups("owners", "list").code == 9
