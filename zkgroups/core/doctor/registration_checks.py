"""Checks of registrations: nodes without a session, nodes that some clients cannot read, and mixed dialects."""

from __future__ import annotations

from collections.abc import Iterator

from ..znodes.group_view import RegisteredInstance
from ..znodes.paths import Part, join
from ..znodes.values import (
    Dialect,
    ForbiddenNode,
    MalformedNode,
    Registration,
    UnevaluableRegistration,
    unreadable_part,
)
from .advice import (
    cannot_be_read,
    command,
    delete_node,
    end_session,
    repair_group,
)
from .findings import Problem, Remove, Repair, Severity
from .group_nodes import GroupNodes
from .scala_blockers import scala_blocker


def registrations_scala_cannot_read(nodes: GroupNodes) -> Iterator[Problem]:
    """Find registrations that Scala members cannot read. Each makes all of them abandon their rebalances."""
    scala = Dialect.SCALA in nodes.dialects()
    for id, data, session in _candidates(nodes):
        if (blocker := scala_blocker(data)) is not None:
            yield Problem(
                join(nodes.paths.ids, id),
                f"the registration of {id!r} stops every Scala member of the group: {blocker}",
                end_session(session),
                severity=None if scala else Severity.WARNING,
            )


def _candidates(nodes: GroupNodes) -> Iterator[tuple[str, bytes, int]]:
    """Yield malformed registrations, and those of pykafka if there are Scala members to be stopped by them."""
    with_scala = Dialect.SCALA in nodes.dialects()
    for node in nodes.view.instances:
        found = node.registration
        if isinstance(found, Registration):
            if found.dialect is Dialect.PYKAFKA and with_scala:
                yield node.id, next(iter(found.streams)).encode(), node.session
        elif isinstance(malformed := unreadable_part(found), MalformedNode):
            yield node.id, malformed.data, node.session


def unreadable_registrations(nodes: GroupNodes) -> Iterator[Problem]:
    """Find malformed registrations that may still be valid for Scala members."""
    unevaluable = {found.node for found in _unevaluable(nodes)}
    for node in nodes.malformed(Part.IDS):
        if node not in unevaluable and scala_blocker(node.data) is None:
            yield Problem(node.path, cannot_be_read("the registration", node), end_session(node.session))


def unevaluable_subscriptions(nodes: GroupNodes) -> Iterator[Problem]:
    """Find subscriptions that only Java can evaluate. zkgroups members divide the partitions without such instances."""
    for found in _unevaluable(nodes):
        expression = next(iter(found.registration.streams))
        stop = end_session(found.node.session)
        yield Problem(
            found.node.path,
            f"the {found.registration.pattern} {expression!r:.80} cannot be evaluated: {found.reason}",
            f"use a simpler expression or fewer topics; if the instance is not needed: {stop}",
        )


def _unevaluable(nodes: GroupNodes) -> Iterator[UnevaluableRegistration]:
    registrations = (instance.registration for instance in nodes.view.instances)
    return (found for found in registrations if isinstance(found, UnevaluableRegistration))


def persistent_registrations(nodes: GroupNodes) -> Iterator[Problem]:
    """Find registrations without a session. Old clients assign partitions to them, though no client is behind them."""
    for node in nodes.view.instances:
        if node.persistent:
            path = join(nodes.paths.ids, node.id)
            what = f"the registration of {node.id!r} belongs to no session, so it never expires"
            repair = _remove_registration(path, node) if is_removable(nodes, node) else None
            yield Problem(
                path,
                f"{what}: old clients assign partitions to it",
                delete_node(path) if repair is None else repair_group(nodes),
                repair,
            )


def is_removable(nodes: GroupNodes, node: RegisteredInstance) -> bool:
    """True if no client is behind the node, it has no children, and it is readable: the repair needs permissions."""
    if isinstance(node.registration, ForbiddenNode):
        return False
    return node in nodes.view.dead and join(nodes.paths.ids, node.id) not in nodes.nested


def _remove_registration(path: str, node: RegisteredInstance) -> Repair:
    """Delete the node. This is safe whoever is registered: the deletion proves that the node has no session."""
    return Repair("delete the node", (Remove(path, node.version, persistent=True),), is_always_safe=True)


def registrations_kazoo_go_cannot_read(nodes: GroupNodes) -> Iterator[Problem]:
    """Find registrations whose timestamp is text, as Scala writes it: kazoo-go accepts only a number."""
    if Dialect.KAZOO_GO not in nodes.dialects():
        return
    for path, registration in nodes.registrations():
        if registration.dialect is Dialect.SCALA and registration.timestamp is not None:
            yield Problem(
                path,
                "its timestamp is text, which the group's kazoo-go members cannot read",
                "stop either the kazoo-go or the Scala members: they cannot share a group",
            )


def mixed_dialects(nodes: GroupNodes) -> Iterator[Problem]:
    """Find groups with several kinds of clients. zkgroups is compatible with all of them but pykafka."""
    dialects = nodes.dialects()
    pykafka = Dialect.PYKAFKA in dialects
    if len({each for each in dialects if pykafka or not each.is_of_zkgroups}) > 1:
        names = ", ".join(sorted(dialects))
        yield Problem(
            nodes.paths.ids,
            f"clients of several kinds are registered: {names}; they are not fully compatible",
            f"keep only one kind running: {command('members', 'list', nodes.group)}",
            severity=Severity.ERROR if pykafka else None,
        )
