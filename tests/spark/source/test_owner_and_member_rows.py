"""Rows of the tables `owners` and `members`."""

from __future__ import annotations

from typing import Any

import pytest

from zkgroups import Dialect, Registration, Registry, TopicPartition
from zkgroups.core.znodes.registration_codec import encode_registration

from ..conftest import Read, plant
from .rows import KAZOO_GO, OPERATORS, SCALA, WHITE_LIST, told

pytestmark = pytest.mark.zookeeper


def test_every_owner_of_any_client_has_a_row(read: Read, raw: Any, registry: Registry, zookeeper_hosts: str) -> None:
    me = registry.group("billing").instance("anna")
    me.register(["orders"])
    me.claim_many([TopicPartition("orders", n) for n in (0, 1)])
    plant(raw, {"billing/owners/orders/2": b"billing_host-1-ab-0"}, ephemeral=True)
    plant(raw, {"billing/owners/b'orders'/1001-3": b"host:uuid"}, ephemeral=True)
    pykafka = {"1001-0": b"pykafka", "1001-4": b"\xff"}
    plant(raw, {f"billing/owners/b'orders'/{name}": data for name, data in pykafka.items()}, ephemeral=True)
    plant(raw, {"billing/owners/orders/x": b"who", "other/owners/t/0": b"ben"}, ephemeral=True)
    plant(raw, {"billing/owners/orders/9": b"of no session", "closed/owners/t/0": b"x"})
    raw.set_acls("/consumers/closed/owners/t", [OPERATORS])
    expected = []
    for path, partition, owner, problem in (
        ("billing/owners/orders/0", 0, "anna", None),
        ("billing/owners/orders/1", 1, "anna", None),
        ("billing/owners/orders/2", 2, "billing_host-1-ab-0", None),
        ("billing/owners/b'orders'/1001-0", 0, "pykafka", None),
        ("billing/owners/b'orders'/1001-3", 3, "host:uuid", None),
        ("billing/owners/b'orders'/1001-4", 4, None, "not UTF-8"),
        ("billing/owners/orders/9", 9, None, "it belongs to no session, so no session's end will delete it"),
        ("billing/owners/orders/x", None, None, "its name is not a partition"),
        ("other/owners/t/0", 0, "ben", None),
    ):
        data, stat = raw.get(f"/consumers/{path}")
        expected.append(
            {
                "cluster": zookeeper_hosts,
                "group": path.split("/")[0],
                "topic": "t" if path.startswith("other") else "orders",
                "partition": partition,
                "owner": owner,
                "session": hex(stat.ephemeralOwner) if stat.ephemeralOwner else None,
                "claimed_at": stat.ctime,
                "zxid": stat.czxid,
                "raw": data if problem else None,
                "problem": problem and f"/consumers/{path}: {problem}",
            }
        )
    problem = "/consumers/closed/owners/t: no permission to read it"
    unknown = dict.fromkeys(["partition", "owner", "session", "claimed_at", "zxid", "raw"])
    expected.append({"cluster": zookeeper_hosts, "group": "closed", "topic": "t", "problem": problem} | unknown)
    key = lambda row: [repr(row[column]) for column in ("group", "topic", "partition", "problem", "owner")]  # noqa: E731
    for parallelism in (1, 3):
        assert sorted(told(read("owners", parallelism=parallelism)), key=key) == sorted(expected, key=key)


def test_every_member_has_a_row_with_its_subscription(
    read: Read, raw: Any, registry: Registry, zookeeper_hosts: str
) -> None:
    registry.group("billing").instance("anna").register({"orders": 2, "tax": 1})
    through_gateway = Registration({"orders": 1}, dialect=Dialect.GATEWAY, client_id="app", client_host="/10.0.0.7")
    others = {
        "scala": SCALA,
        "gate": encode_registration(through_gateway),
        "list": WHITE_LIST,
        "go": KAZOO_GO,
        "py": b"orders",
        "junk": b"{",
        "empty": b"",
    }
    plant(raw, {f"billing/ids/{name}": data for name, data in others.items()}, ephemeral=True)
    plant(raw, {"closed/ids/x": SCALA, "half/ids/denied": SCALA, "half/ids/ben": SCALA})
    raw.set_acls("/consumers/closed/ids", [OPERATORS])
    raw.set_acls("/consumers/half/ids/denied", [OPERATORS])
    orders2 = ({"orders": 2}, "static", "scala", None)
    expected = []
    for path, subscription, pattern, dialect, problem in (
        ("billing/ids/anna", {"orders": 2, "tax": 1}, "static", "zkgroups", None),
        ("billing/ids/scala", *orders2),
        ("billing/ids/gate", {"orders": 1}, "static", "gateway", None),
        ("billing/ids/list", {"ord.*": 1}, "white_list", "scala", None),
        ("billing/ids/go", {"orders": 1, "tax": 3}, "static", "kazoo-go", None),
        ("billing/ids/py", {"orders": 1}, "static", "pykafka", None),
        ("billing/ids/junk", None, None, None, "neither a JSON object nor the name of a topic"),
        ("billing/ids/empty", None, None, None, "empty"),
        ("half/ids/ben", *orders2),
    ):
        group, _, instance = path.split("/")
        data, stat = raw.get(f"/consumers/{path}")
        expected.append(
            {
                "cluster": zookeeper_hosts,
                "group": group,
                "instance": instance,
                "session": hex(stat.ephemeralOwner) if stat.ephemeralOwner else None,
                "registered_at": stat.ctime,
                "subscription": subscription,
                "pattern": pattern,
                "dialect": dialect,
                "client_id": "app" if dialect == "gateway" else None,
                "client_host": "/10.0.0.7" if dialect == "gateway" else None,
                "raw": data if problem else None,
                "problem": problem and f"/consumers/{path}: {problem}",
            }
        )
    columns = "session registered_at subscription pattern dialect client_id client_host raw"
    unknown = dict.fromkeys(columns.split())
    for group, instance, path in (("closed", None, "closed/ids"), ("half", "denied", "half/ids/denied")):
        problem = f"/consumers/{path}: no permission to read it"
        expected.append(
            {"cluster": zookeeper_hosts, "group": group, "instance": instance, "problem": problem} | unknown
        )
    key = lambda row: (row["group"], row["instance"] or "")  # noqa: E731
    for parallelism in (1, 3):
        assert sorted(told(read("members", parallelism=parallelism)), key=key) == sorted(expected, key=key)
