"""Turn changes of registrations into events."""

from __future__ import annotations

from dataclasses import replace

from ..znodes.paths import CONSUMERS, Part, join
from ..znodes.registration_codec import decode_registration
from ..znodes.values import ReadRegistration
from .changes import ChangeKind, KnownNode, NodeChange, SessionEnd
from .events import MemberAction, MemberChange, PastInstance
from .known_groups import KnownGroups


def add_member(known: KnownGroups, group: str, id: str, node: KnownNode) -> PastInstance:
    """Add the registration in a node that exists."""
    read = _decode(group, id, node.data, session=node.session, version=node.version)
    member = PastInstance(group, id, node.session, node.czxid, node.created_ms, read)
    known.register(node.path, member)
    return member


def change_member(known: KnownGroups, group: str, id: str, change: NodeChange) -> MemberChange:
    """Apply a change of a registration, and return its event."""
    member = known.instance_at(change.path) or PastInstance(group, id, None)
    if change.kind is ChangeKind.CREATED:
        action, member = MemberAction.REGISTERED, add_member(known, group, id, change.node)
    elif change.kind is ChangeKind.WRITTEN:
        read = _decode(group, id, change.data, session=member.session or 0, version=change.version)
        action, member = MemberAction.CHANGED, replace(member, read=read)
        known.register(change.path, member)
    else:
        action = _ending(member, change.session)
        known.deregister(change.path)
    return _event(known, change, action, member)


def end_member(known: KnownGroups, group: str, id: str, change: NodeChange, path: bytes) -> MemberChange:
    """Remove a registration of a session that has ended, and return the event."""
    member = known.instance_at(path) or PastInstance(group, id, change.session)
    known.deregister(path)
    action = MemberAction.EXPIRED if change.end is SessionEnd.EXPIRED else MemberAction.CLOSED
    return _event(known, change, action, member)


def _ending(member: PastInstance, session: int) -> MemberAction:
    """Return what it means that a session deletes the registration."""
    if member.session is None:
        return MemberAction.DELETED
    return MemberAction.DEREGISTERED if member.session == session else MemberAction.REMOVED


def _event(known: KnownGroups, change: NodeChange, action: MemberAction, member: PastInstance) -> MemberChange:
    is_its_own = member.session == change.session
    instance = member if is_its_own else known.instance_of(change.session, member.group)
    zxid, time_ms, session, *_ = change
    return MemberChange(zxid, time_ms, session, member.group, action, member, instance, zxid > known.complete_from)


def _decode(group: str, id: str, data: bytes, *, session: int, version: int) -> ReadRegistration:
    return decode_registration(join(CONSUMERS, group, Part.IDS, id), data, session=session, version=version)
