"""Nodes of a group that the doctor examines, and its findings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from zkgroups import Dialect, Finding, Owner, RegisteredInstance, Registration, TopicPartition
from zkgroups.core.doctor.all_checks import run_checks
from zkgroups.core.doctor.group_nodes import Directory, GroupNodes
from zkgroups.core.znodes.group_view import GroupView
from zkgroups.core.znodes.offset_codec import decode_offset
from zkgroups.core.znodes.owner_codec import decode_owner
from zkgroups.core.znodes.paths import GroupPaths
from zkgroups.core.znodes.registration_codec import decode_registration, encode_registration
from zkgroups.core.znodes.values import (
    UnreadableNode,
    unreadable_part,
)

SESSION = 0x1234
PATHS = GroupPaths("billing")
AT = TopicPartition("orders", 0)
SCALA = b'{"version":1,"subscription":{"orders":1},"pattern":"static","timestamp":"1795255170109"}'
KAZOO_GO = b'{"version":1,"subscription":{"orders":1},"pattern":"static","timestamp":1795255543}'
OURS = encode_registration(Registration({"orders": 1}))
GATEWAY = encode_registration(Registration({"orders": 1}, dialect=Dialect.GATEWAY, client_id="app", client_host="/h"))


def member(id: str, data: bytes = OURS, *, session: int = SESSION) -> RegisteredInstance:
    registration = decode_registration(PATHS.ids + "/" + id, data, session=session)
    return RegisteredInstance(id, session, registration)


def owner(id: str, at: TopicPartition = AT, *, session: int = SESSION, group: str = "billing") -> Owner:
    return Owner(at, id, session, path=GroupPaths(group).owner(at))


def bad_owner(data: bytes, *, session: int = 0, partition: str = "0") -> UnreadableNode:
    at = TopicPartition("orders", int(partition)) if partition.isdigit() else None
    found = decode_owner(f"{PATHS.owners}/orders/{partition}", at, data, session=session)
    assert isinstance(found, UnreadableNode)
    return found


def bad_offset(data: bytes, name: str = "0") -> UnreadableNode:
    found = decode_offset(f"{PATHS.offsets}/orders/{name}", data, version=3)
    assert isinstance(found, UnreadableNode)
    return found


def group(*instances: RegisteredInstance, **fields: Any) -> GroupNodes:
    """A group with these members. Malformed registrations are also listed as unreadable nodes, as a reader lists
    them."""
    unreadable = [node for each in instances if (node := unreadable_part(each.registration)) is not None]
    of_nodes = {name: fields.pop(name) for name in list(fields) if name not in GroupView.__dataclass_fields__}
    view = GroupView("billing", instances=instances, **fields)
    return GroupNodes(replace(view, unreadable=(*view.unreadable, *unreadable)), **of_nodes)


def codes(nodes: GroupNodes) -> list[str]:
    return [finding.code for finding in run_checks(nodes)]


def the(code: str, nodes: GroupNodes) -> Finding:
    [finding] = [finding for finding in run_checks(nodes) if finding.code == code]
    return finding


# Topics


def offsets(topic: str, *names: str, data: bytes = b"") -> Directory:
    return Directory(f"{PATHS.offsets}/{topic}", names, data, version=3)


# The group as a whole


def litter(**fields: Any) -> GroupNodes:
    root = fields.pop("root", Directory(PATHS.root, ("ids", "owners")))
    owned = fields.pop("owned", Directory(PATHS.owners + "/orders", version=2))
    return group(directories=(root, Directory(PATHS.ids), Directory(PATHS.owners, ("orders",)), owned), **fields)
