"""The rows of the tables, for nodes of every kind. Several tasks read each table."""

from __future__ import annotations

from typing import Any

import pytest

from zkgroups import CommittedOffset, Dialect, Registration, Registry, TopicPartition
from zkgroups.core.znodes.registrations import encode_registration
from zkgroups.exceptions import NoPermissionError
from zkgroups.spark.errors import translated

from ...core.layouts.written import WRITERS
from ..conftest import Read, plant
from .conftest import KAZOO_GO, OPERATORS, SCALA, WHITE_LIST, denied, in_order, offset_row, told

pytestmark = pytest.mark.zookeeper

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
NOT_PARTITIONS = ("x", "07", "-1", "+1", "٣", "2147483648", "b'1'", " 1")


def test_every_offset_has_a_row_with_all_details_or_a_problem(read: Read, raw: Any, zookeeper_hosts: str) -> None:
    good = {f"{g}/offsets/{t}/{n}": b"%d" % (n * 1000) for g in "ab" for t in ("orders", "tax") for n in range(12)}
    good |= {"a/offsets/orders/99": b"+7", "b/offsets/tax/2147483647": b"007", "b/offsets/tax/100": b"%d" % (2**63 - 1)}
    bad = {f"bad/offsets/orders/{name}": data for name, data in BAD.items()}
    named = {f"bad/offsets/names/{name}": b"7" for name in NOT_PARTITIONS}
    hidden = ("closed/offsets", "half/offsets/tax", "half/offsets/orders/3")
    plant(raw, good | bad | named)
    plant(raw, {"closed/offsets/t/0": b"7", "half/offsets/tax/0": b"7", "half/offsets/orders/3": b"7"})
    for path in hidden:
        raw.set_acls(f"/consumers/{path}", [OPERATORS])
    for _ in range(3):
        raw.set("/consumers/a/offsets/orders/3", b"12345")

    rows = told(read(parallelism=3))

    expected = [offset_row(raw, zookeeper_hosts, path) for path in good]
    assert {row["commit_count"] for row in expected} == {0, 3}
    expected += [
        denied(zookeeper_hosts, "closed", "closed/offsets"),
        denied(zookeeper_hosts, "half", "half/offsets/tax", topic="tax"),
        denied(zookeeper_hosts, "half", "half/offsets/orders/3", topic="orders", partition=3),
    ]
    for path in named:
        different = {"partition": None, "offset": None, "raw": b"7"}
        problem = f"/consumers/{path}: its name is not a partition"
        expected.append(offset_row(raw, zookeeper_hosts, path, **different, problem=problem))
    for path, data in bad.items():
        [problem] = [
            row["problem"] for row in rows if row["problem"] and row["problem"].startswith(f"/consumers/{path}: ")
        ]
        different = {"partition": int(path[-1]), "offset": None, "raw": data}
        expected.append(offset_row(raw, zookeeper_hosts, path, **different, problem=problem))
    assert rows == in_order(expected)
    assert "/consumers/bad/offsets/orders/1: not a decimal number" in {row["problem"] for row in rows}
    assert [row["group"] for row in told(read(topics="nothing"))] == ["closed"]  # whose topics are unknown


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
    rows = told(read(parallelism=3))
    assert {f"{r['topic']}/{r['partition']}": r["owner"] for r in rows if r["owner"]} == owned
    assert len(rows) == 33


def test_a_forbidden_list_of_groups_is_an_error(read: Read, raw: Any) -> None:
    plant(raw, {"a/offsets/t/0": b"7"})
    raw.set_acls("/consumers", [OPERATORS])
    with pytest.raises(NoPermissionError, match="no permission on /consumers"), translated("it"):
        read().count()


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
    assert sorted(told(read("owners", parallelism=3)), key=key) == sorted(expected, key=key)


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
    assert sorted(told(read("members", parallelism=3)), key=key) == sorted(expected, key=key)


@pytest.mark.parametrize("text", ["spark:/spark/{group} --stored until", "trident:/transactional"])
def test_tasks_share_the_offsets_of_a_layout_although_paths_or_nodes_hide_topics(
    read: Read, raw: Any, registry: Registry, text: str
) -> None:
    offsets = {TopicPartition("orders", number): 50 + number for number in range(3)} | {TopicPartition("refunds", 7): 1}
    for group in ("a", "b"):
        for path, data in WRITERS[text](group, offsets).items():
            if raw.exists(path):
                raw.set(path, data)
            else:
                raw.create(path, data, makepath=True)
    rows = [row.asDict() for row in read(layout=text, parallelism=3).collect()]
    expected = [each for each in registry.offsets(layout=text) if isinstance(each, CommittedOffset)]
    assert sorted((row["group"], row["topic"], row["partition"], row["offset"], row["zxid"]) for row in rows) == [
        (each.group, each.at.topic, each.at.partition, each.offset, each.zxid) for each in expected
    ]
    assert {row["layout"] for row in rows} == {text}
    assert read("members", layout=text).isEmpty()
    newest = max(each.zxid for each in expected)
    assert read(layout=text, startingZxid=newest - 1).count() >= 1
    assert read(layout=text, startingZxid=newest).isEmpty()
