"""A tree with one group for each possible problem, named after the check that finds it, and a healthy group."""

from __future__ import annotations

from typing import Any

from kazoo.client import KazooClient
from kazoo.security import ACL, Id, Permissions, make_digest_acl_credential

SCALA = b'{"version":1,"subscription":{"orders":1},"pattern":"static","timestamp":"1795255170109"}'
KAZOO_GO = b'{"version":1,"subscription":{"orders":1},"pattern":"static","timestamp":1795255543}'
OURS = b'{"version":1,"subscription":{"orders":1},"pattern":"static","timestamp":1795255543,"client":"zkgroups"}'

POISON = {
    "empty": b"",
    "no-json": b"{nonsense",
    "bare": b"orders",
    "no-pattern": b'{"version":1,"subscription":{"orders":1}}',
    "null-pattern": b'{"subscription":{"orders":1},"pattern":null}',
    "no-subscription": b'{"version":1,"pattern":"static"}',
    "zero": b'{"subscription":{"orders":0},"pattern":"static"}',
    "text": b'{"subscription":{"orders":"1"},"pattern":"static"}',
    "half": b'{"subscription":{"orders":1.0},"pattern":"static"}',
    "list": b'{"subscription":["orders"],"pattern":"static"}',
    "no-expression": b'{"subscription":{"(":1},"pattern":"white_list"}',
}
"""Every kind of registration that stops Scala members."""

STOPPERS = {"0": b"", "1": b"abc", "2": b"1.0", "3": b"9223372036854775808", "4": b"7 8", "5": b"+4 "}
"""Offsets that stop Scala members, and whose number is ambiguous."""

PADDED = {"0": b"7 ", "1": b" 8", "2": b"3\n", "3": b"\t12\r\n"}
"""Offsets that stop Scala members, and whose number is clear."""

ALICE = make_digest_acl_credential("alice", "sesame")
CLOSED = [ACL(Permissions.ALL, Id("digest", ALICE)), ACL(Permissions.READ, Id("world", "anyone"))]
HIDDEN = [ACL(Permissions.ALL, Id("digest", ALICE))]

Place = tuple[str, str]


class Tree:
    """Creates nodes by its own client, whose session owns the ephemeral ones."""

    def __init__(self, client: KazooClient) -> None:
        self.client = client
        client.add_auth("digest", "alice:sesame")
        client.ensure_path("/consumers")
        for topic in ("orders", "refunds"):
            data = b'{"version":1,"partitions":{"0":[1],"1":[1],"2":[1],"3":[1],"4":[1],"5":[1]}}'
            client.create(f"/brokers/topics/{topic}", data, makepath=True)

    def put(self, path: str, data: bytes = b"", *, living: bool = False, acl: Any = None) -> str:
        """Create an ephemeral or persistent node under /consumers, and return its path."""
        whole = f"/consumers/{path}"
        self.client.create(whole, data, ephemeral=living, makepath=True, acl=acl)
        return whole

    def member(self, group: str, id: str, data: bytes = SCALA) -> str:
        return self.put(f"{group}/ids/{id}", data, living=True)

    def owner(self, group: str, topic: str, partition: str, id: str) -> str:
        return self.put(f"{group}/owners/{topic}/{partition}", id.encode(), living=True)


def plant(tree: Tree) -> set[Place]:
    """Plant one example for each check. Return the codes and paths."""
    plant_healthy(tree)
    return {*_owners(tree), *_registrations(tree), *_topics(tree), *_offsets(tree), *_whole(tree)}


def plant_healthy(tree: Tree) -> None:
    """Plant a group without any problem, including its access control lists."""
    for directory in ("", "/ids", "/owners", "/owners/orders", "/offsets", "/offsets/orders"):
        tree.put(f"healthy{directory}", acl=CLOSED)
    tree.member("healthy", "healthy_h-1-ab")
    tree.member("healthy", "ours", OURS)
    for partition, offset in enumerate((b"0", b"+4", b"007", b"9223372036854775807", b"5", b"6")):
        tree.owner("healthy", "orders", str(partition), "healthy_h-1-ab-0")
        tree.put(f"healthy/offsets/orders/{partition}", offset)


def _owners(tree: Tree) -> set[Place]:
    found = {
        ("orphan-owner", tree.owner("orphan", "orders", "0", "nobody-0")),
        ("persistent-owner", tree.put("persistent/owners/orders/0", b"long-gone")),
        ("persistent-owner", tree.put("persistent/owners/b'orders'/1001-1", b"long-gone-0")),
        ("unreadable-owner", tree.owner("unreadable", "orders", "x", "somebody")),
        ("two-owners", tree.owner("two-owners", "orders", "0", "scala-0")),
        ("blocked-partition", tree.owner("blocked", "orders", "0", "cron")),
        ("unowned-partition", "/consumers/unowned/owners/orders"),
    }
    tree.member("blocked", "blocked_h-1-ab")
    tree.member("blocked", "cron", OURS.replace(b"orders", b"refunds"))
    tree.owner("two-owners", "b'orders'", "1001-0", "pykafka")
    tree.member("unowned", "unowned_h-1-ab")
    tree.owner("unowned", "orders", "0", "unowned_h-1-ab-0")
    return found


def _registrations(tree: Tree) -> set[Place]:
    tree.member("poison", "poison_h-1-ab")
    poison = {("scala-cannot-read", tree.member("poison", kind, data)) for kind, data in POISON.items()}
    tree.member("go", "go", KAZOO_GO)
    tree.member("mixed", "mixed_h-1-ab")
    tree.member("mixed", "pykafka", b"orders")
    only_java_can_tell = SCALA.replace(b"orders", rb"\\p{Lu}+").replace(b"static", b"white_list")
    return poison | {
        ("unevaluable-subscription", tree.member("java", "java_h-1-ab", only_java_can_tell)),
        (
            "unreadable-registration",
            tree.member("dots", "dots_h-1-ab", b'{"subscription":{"..":1},"pattern":"static"}'),
        ),
        ("persistent-registration", tree.put("for-ever/ids/for-ever_h-1-ab", SCALA)),
        ("kazoo-go-cannot-read", tree.member("go", "go_h-1-ab")),
        ("mixed-dialects", "/consumers/mixed/ids"),
    }


def _topics(tree: Tree) -> set[Place]:
    tree.put("gone/offsets/deleted/0", b"5")
    tree.owner("gone", "removed", "0", "nobody-0")
    tree.put("gone/owners/emptied")
    return {
        ("missing-topic", "/consumers/gone/offsets/deleted"),
        ("missing-topic", "/consumers/gone/owners/removed"),
        ("missing-topic", "/consumers/gone/owners/emptied"),
        ("missing-topic", tree.member("gone", "gone_h-1-ab", SCALA.replace(b"orders", b"deleted"))),
        ("unknown-partition", tree.put("past/offsets/orders/6", b"5")),
        ("unknown-partition", tree.owner("past", "orders", "7", "nobody-0")),
        ("unreadable-topic", _broken_topic(tree)),
    }


def _broken_topic(tree: Tree) -> str:
    tree.put("broken-topic/offsets/broken/0", b"5")
    tree.client.create("/brokers/topics/broken", b"nonsense")
    return "/brokers/topics/broken"


def _offsets(tree: Tree) -> set[Place]:
    padded = {
        ("padded-offset", tree.put(f"padded/offsets/orders/{partition}", data)) for partition, data in PADDED.items()
    }
    stoppers = {
        ("unreadable-offset", tree.put(f"stopper/offsets/orders/{partition}", data))
        for partition, data in STOPPERS.items()
    }
    tree.put("singular/offsets/orders/0", b"5")
    tree.put("singular/offset/orders/0", b"6")
    return (
        padded
        | stoppers
        | {
            ("singular-offset", "/consumers/singular/offset/orders"),
            ("negative-offset", tree.put("negative/offsets/orders/0", b"-1")),
            ("misnamed-offset", tree.put("misnamed/offsets/orders/01", b"5")),
        }
    )


def _whole(tree: Tree) -> set[Place]:
    tree.put("hidden/offsets/orders/0", b"5", acl=HIDDEN)
    tree.put("litter/owners/orders")
    tree.put("litter/ids")
    tree.put("nested/offsets/orders/0", b"5")
    tree.put("nested/offsets/orders/0/below")
    return {
        ("no-permission", "/consumers/hidden/offsets"),
        ("empty-group", "/consumers/litter"),
        ("nested-node", "/consumers/nested/offsets/orders/0"),
        ("open-acl", "/consumers/litter"),
    }
