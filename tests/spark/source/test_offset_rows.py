"""Rows of the table `offsets`."""

from __future__ import annotations

from typing import Any

import pytest

from zkgroups import Registry, TopicPartition
from zkgroups.exceptions import (
    NoPermissionError,
)
from zkgroups.spark.errors import translated

from ..conftest import Read, plant
from .rows import OPERATORS, denied, in_order, offset_row, told

pytestmark = pytest.mark.zookeeper


def test_every_offset_has_a_row_with_all_details(read: Read, raw: Any, zookeeper_hosts: str) -> None:
    nodes = {f"{g}/offsets/{t}/{n}": f"{n * 1000}".encode() for g in "ab" for t in ("orders", "tax") for n in range(12)}
    nodes |= {
        "a/offsets/orders/99": b"+7",
        "b/offsets/tax/2147483647": b"007",
        "b/offsets/tax/100": b"%d" % (2**63 - 1),
    }
    plant(raw, nodes)
    for _ in range(3):
        raw.set("/consumers/a/offsets/orders/3", b"12345")
    expected = in_order([offset_row(raw, zookeeper_hosts, path) for path in nodes])
    assert told(read()) == expected
    assert told(read(parallelism=3)) == expected
    assert {row["commit_count"] for row in expected} == {0, 3}


def test_the_owner_of_any_client_is_shown_beside_the_offset(
    read: Read, raw: Any, registry: Registry, zookeeper_hosts: str
) -> None:
    plant(raw, {f"billing/offsets/{topic}/{n}": b"5" for topic in ("accounts", "orders", "tax") for n in range(11)})
    me = registry.group("billing").instance("anna")
    me.register(["orders"])
    me.claim_many([TopicPartition("orders", n) for n in (0, 1, 10)])
    others = {"orders/2": b"billing_host-1-ab-0", "b'orders'/1001-3": b"host:uuid", "orders/4": b"", "orders/x": b"no"}
    both = {"orders/5": b"scala-0", "b'orders'/1001-5": b"pykafka", "accounts/5": b"scala-0", "b'accounts'/7-5": b"py"}
    plant(raw, {f"billing/owners/{path}": data for path, data in (others | both).items()}, ephemeral=True)
    plant(raw, {"aaa/owners/orders/0": b"of another group", "billing/owners/t/0": b"no offset"}, ephemeral=True)
    plant(raw, {"billing/owners/tax/0": b"of no session"})
    owned = {"orders/0": "anna", "orders/1": "anna", "orders/10": "anna", "orders/2": "billing_host-1-ab-0"}
    owned |= {"orders/3": "host:uuid", "orders/5": "pykafka", "accounts/5": "scala-0"}  # of two, the first by name
    for parallelism in (1, 3):
        rows = told(read(parallelism=parallelism))
        assert {f"{r['topic']}/{r['partition']}": r["owner"] for r in rows if r["owner"]} == owned
        assert len(rows) == 33


BAD = {
    "0": b"",
    "1": b"abc",
    "2": b"-5",
    "3": b"7.5",
    "4": b"9223372036854775808",
    "5": b"7 ",
    "6": b"\xff\x00",
    "7": "٣".encode(),
    "8": b"9" * 5_000,
    "9": b"x" * 300_000,
}


def test_a_malformed_offset_has_a_row_with_its_bytes_and_a_problem(read: Read, raw: Any, zookeeper_hosts: str) -> None:
    bad = {f"billing/offsets/orders/{name}": data for name, data in BAD.items()}
    good = {f"billing/offsets/orders/{n}": b"7" for n in range(10, 40)}
    plant(raw, bad | good)
    rows = told(read())
    assert len(rows) == len(bad) + len(good)
    problems = {row["partition"]: row.pop("problem") for row in rows if row["problem"]}
    assert sorted(problems) == list(range(10))
    assert all(p.startswith(f"/consumers/billing/offsets/orders/{n}: ") for n, p in problems.items())
    assert problems[1] == "/consumers/billing/offsets/orders/1: not a plain decimal number"
    for path, data in bad.items():
        unreadable = {"partition": int(path[-1]), "offset": None, "raw": data, "problem": None}
        expected = offset_row(raw, zookeeper_hosts, path, **unreadable)
        [row] = [row for row in rows if row["partition"] == expected["partition"]]
        assert row | {"problem": None} == expected


def test_names_that_are_not_partitions_have_rows_with_a_problem(read: Read, raw: Any, zookeeper_hosts: str) -> None:
    names = ["x", "07", "-1", "+1", "٣", "2147483648", "b'1'", " 1"]
    plant(raw, {f"billing/offsets/orders/{name}": b"5" for name in [*names, "3"]})
    for name in [*names, "3"]:
        raw.set(f"/consumers/billing/offsets/orders/{name}", b"7")
    expected = [offset_row(raw, zookeeper_hosts, "billing/offsets/orders/3")]
    for name in names:
        problem = f"/consumers/billing/offsets/orders/{name}: its name is not a partition"
        different = {"partition": None, "offset": None, "raw": b"7", "problem": problem}
        expected.append(offset_row(raw, zookeeper_hosts, f"billing/offsets/orders/{name}", **different))
    assert told(read()) == in_order(expected)


def test_a_forbidden_node_has_a_row_with_a_problem(read: Read, raw: Any, zookeeper_hosts: str) -> None:
    groups = ("closed", "half", "open")
    plant(raw, {f"{g}/offsets/{t}/{n}": b"7" for g in groups for t in ("orders", "tax") for n in range(12)})
    for path in ("closed/offsets", "half/offsets/tax", "half/offsets/orders/3"):
        raw.set_acls(f"/consumers/{path}", [OPERATORS])
    readable = [f"open/offsets/{t}/{n}" for t in ("orders", "tax") for n in range(12)]
    readable += [f"half/offsets/orders/{n}" for n in range(12) if n != 3]
    expected = [offset_row(raw, zookeeper_hosts, path) for path in readable]
    expected += [
        denied(zookeeper_hosts, "closed", "closed/offsets"),
        denied(zookeeper_hosts, "half", "half/offsets/tax", topic="tax"),
        denied(zookeeper_hosts, "half", "half/offsets/orders/3", topic="orders", partition=3),
    ]
    for parallelism in (1, 3):
        assert told(read(parallelism=parallelism)) == in_order(expected)
    assert [row["group"] for row in told(read(topics="nothing"))] == ["closed"]  # whose topics are unknown


def test_a_forbidden_list_of_groups_is_an_error(read: Read, raw: Any) -> None:
    plant(raw, {"a/offsets/t/0": b"7"})
    raw.set_acls("/consumers", [OPERATORS])
    with pytest.raises(NoPermissionError, match="no permission on /consumers"), translated("it"):
        read().count()
