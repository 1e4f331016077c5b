"""Checks of the group as a whole, of its registrations and of its owner nodes."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from ...exceptions import InvalidNameError
from ..java_regex import BrokenExpressionError, UnevaluableExpressionError
from ..topic_filter import topic_filter
from ..znodes.codecs import decode_owner_path
from ..znodes.group_description import Obstacle, RegisteredInstance
from ..znodes.paths import Part, join
from ..znodes.topic_partition import TopicPartition, check_instance
from ..znodes.values import (
    Dialect,
    ForbiddenNode,
    MalformedNode,
    Owner,
    Registration,
    UnevaluableRegistration,
    unreadable_part,
)
from .findings import (
    Problem,
    Remove,
    Repair,
    Severity,
    cannot_be_read,
    command,
    delete_node,
    end_session,
    release,
    repair_group,
    some_partitions,
)
from .group_nodes import GroupNodes

# Checks of the group as a whole: forbidden nodes, empty groups, nested nodes and open ACLs.


def forbidden_nodes(nodes: GroupNodes) -> Iterator[Problem]:
    """Find forbidden nodes. They may have problems of their own, and hide others."""
    for node in (*nodes.view.unreadable, *(each.found for each in nodes.singular)):
        if isinstance(node, ForbiddenNode):
            yield Problem(
                node.path,
                "no permission to read it, so it was not checked",
                "run the doctor with credentials that may read it",
            )


def empty_groups(nodes: GroupNodes) -> Iterator[Problem]:
    """Find groups that consist of empty directories."""
    if nodes.has_only_directories:
        what = "the group has no registrations, owners or offsets, only empty directories"
        yield Problem(nodes.paths.root, what, repair_group(nodes), _remove_all(nodes))


def _remove_all(nodes: GroupNodes) -> Repair | None:
    """Delete all directories, if every child is a known directory and none has data."""
    seen = {directory.path: directory for directory in nodes.directories}
    below = {join(path, name) for path, directory in seen.items() for name in directory.names}
    if nodes.paths.root not in seen or below | {nodes.paths.root} != seen.keys():
        return None
    if any(directory.data for directory in seen.values()):
        return None
    deepest_first = sorted(seen.values(), key=lambda directory: (-directory.path.count("/"), directory.path))
    steps = tuple(Remove(directory.path, directory.version) for directory in deepest_first)
    return Repair("delete the group's empty directories", steps)


def nested_nodes(nodes: GroupNodes) -> Iterator[Problem]:
    """Find nodes below leaves. Names with a slash create them; no client reads them, and the leaf cannot be deleted."""
    for path, names in nodes.nested.items():
        shown = ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        what = f"it has unexpected child nodes: {shown}"
        yield Problem(path, what, f"if they are not needed: zkCli.sh deleteall {shlex.quote(path)}")


def open_directories(nodes: GroupNodes) -> Iterator[Problem]:
    """Find directories that every client may change. Old clients create them like that."""
    if nodes.open_to_all:
        names = ", ".join(
            "the group" if path == nodes.paths.root else path.rpartition("/")[2] for path in nodes.open_to_all
        )
        what = f"every client may change {names}"
        yield Problem(nodes.paths.root, what, f"to restrict it: zkCli.sh setAcl -R {shlex.quote(nodes.paths.root)} ACL")


# Find the reason why Scala members cannot read a registration.
#
# Scala's `ConsumerConnector` reads the registrations of all members. If it cannot read one of them, every Scala
# member of the group abandons its rebalances until that node is deleted. Any version, any timestamp, an unknown
# pattern and an empty subscription are harmless.


MAX_STREAMS: Final = 2**31 - 1

_EXPRESSIONS: Final = {"white_list", "black_list"}


class ScalaProblem(StrEnum):
    """The part of a registration that Scala members cannot read, as text in which `{value}` is the offending value."""

    EMPTY = "it is empty"
    NOT_AN_OBJECT = "it is not a JSON object"
    NO_SUBSCRIPTION = "it has no subscription"
    SUBSCRIPTION_NOT_AN_OBJECT = "its subscription is not a JSON object"
    NO_PATTERN = "it has no pattern"
    PATTERN_NULL = "its pattern is null"
    PATTERN_NOT_TEXT = "its pattern is not a string"
    INVALID_STREAMS = "{value:.40} is not a number of streams"
    INVALID_EXPRESSION = "{value:.80} is not a valid regular expression"


@dataclass(frozen=True, slots=True)
class ScalaBlocker:
    """The reason why Scala members cannot read a registration, with the offending value as Python writes it."""

    problem: ScalaProblem
    value: str = ""

    def __str__(self) -> str:
        return self.problem.format(value=self.value)


def scala_blocker(data: bytes) -> ScalaBlocker | None:
    """Return the reason why Scala members cannot read the registration, or None if they can, or if only Java can tell.

    >>> print(scala_blocker(b"orders"))
    it is not a JSON object
    """
    if not data:
        return ScalaBlocker(ScalaProblem.EMPTY)
    fields = _object(data)
    if fields is None:
        return ScalaBlocker(ScalaProblem.NOT_AN_OBJECT)
    if "subscription" not in fields:
        return ScalaBlocker(ScalaProblem.NO_SUBSCRIPTION)
    if not isinstance(fields["subscription"], dict):
        return ScalaBlocker(ScalaProblem.SUBSCRIPTION_NOT_AN_OBJECT)
    return _in_pattern(fields) or _in_subscription(fields["subscription"], fields["pattern"])


def _object(data: bytes) -> Mapping[str, Any] | None:
    try:
        found = json.loads(data.decode(errors="replace"), parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _reject_constant(constant: str) -> None:
    """Reject NaN and Infinity, which only Python accepts as JSON."""
    raise ValueError(constant)


def _in_pattern(fields: Mapping[str, Any]) -> ScalaBlocker | None:
    if "pattern" not in fields:
        return ScalaBlocker(ScalaProblem.NO_PATTERN)
    if fields["pattern"] is None:
        return ScalaBlocker(ScalaProblem.PATTERN_NULL)
    return None if isinstance(fields["pattern"], str) else ScalaBlocker(ScalaProblem.PATTERN_NOT_TEXT)


def _in_subscription(subscription: Mapping[str, Any], pattern: str) -> ScalaBlocker | None:
    for streams in subscription.values():
        if isinstance(streams, bool) or not isinstance(streams, int) or not 1 <= streams <= MAX_STREAMS:
            return ScalaBlocker(ScalaProblem.INVALID_STREAMS, repr(streams))
    expression = next(iter(subscription), "")  # Scala compiles only the first one
    if pattern in _EXPRESSIONS and _is_broken(expression):
        return ScalaBlocker(ScalaProblem.INVALID_EXPRESSION, repr(expression))
    return None


def _is_broken(expression: str) -> bool:
    try:
        topic_filter(expression)
    except BrokenExpressionError:
        return True
    except UnevaluableExpressionError:
        return False
    return False


# Checks of registrations: nodes without a session, nodes that some clients cannot read, and mixed dialects.


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
            repair = None if node.id in nodes.kept else _remove_registration(path, node)
            yield Problem(
                path,
                f"{what}: old clients assign partitions to it",
                delete_node(path) if repair is None else repair_group(nodes),
                repair,
            )


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


# Checks of owner nodes: partitions that are held by the wrong client, or that nobody owns.


def orphan_owners(nodes: GroupNodes) -> Iterator[Problem]:
    """Find owner nodes without a registration of the same name and the same session."""
    if nodes.has_forbidden_nodes(Part.IDS):
        return  # the registration may be one of the forbidden nodes
    for owner in nodes.description.orphans:
        yield Problem(
            owner.path,
            f"{owner.at} is held by {owner.holder}, which is not registered with that name and session",
            f"if it no longer reads: {release(nodes, owner)}",
        )


def persistent_owners(nodes: GroupNodes) -> Iterator[Problem]:
    """Find owner nodes without a session. They outlive their owner and block the partition."""
    for node in nodes.malformed(Part.OWNERS):
        if node.session == 0:
            at = _owned_partition(node.path)
            repair = _remove_owner(nodes, node) if at and node.path not in nodes.nested else None
            yield Problem(
                node.path,
                f"{at or 'it'} is held by {node.shown}; the node belongs to no session, so it never expires",
                delete_node(node.path) if repair is None else repair_group(nodes),
                repair,
            )


def _owned_partition(path: str) -> TopicPartition | None:
    topic, name = path.split("/")[-2:]
    return decode_owner_path(topic, name)


def _remove_owner(nodes: GroupNodes, node: MalformedNode) -> Repair | None:
    """Repair only a node whose instance will not be registered after registrations are repaired."""
    names = _names_of_owner(node.data)
    if not names or nodes.kept.intersection(names) or nodes.has_forbidden_nodes(Part.IDS):
        return None
    return Repair("delete the node", (Remove(node.path, node.version, persistent=True),), unless=names)


def _names_of_owner(data: bytes) -> tuple[str, ...]:
    """Return the instances that the data may name: with and without a stream number at its end."""
    try:
        owner = check_instance(data.decode())
    except (UnicodeDecodeError, InvalidNameError):
        return ()
    stem, dash, stream = owner.rpartition("-")
    return (owner, stem) if stem and dash and stream.isascii() and stream.isdigit() else (owner,)


def unreadable_owners(nodes: GroupNodes) -> Iterator[Problem]:
    """Find ephemeral owner nodes that do not name an owner or a partition."""
    for node in nodes.malformed(Part.OWNERS):
        if node.session:
            yield Problem(node.path, cannot_be_read("the owner node", node), end_session(node.session))


def two_owners(nodes: GroupNodes) -> Iterator[Problem]:
    """Find partitions with two owners. pykafka uses other paths, so its claims and those of others do not conflict."""
    for partition in nodes.description.partitions:
        if len(partition.owners) > 1:
            plain = nodes.paths.owner(partition.at)
            first, *others = sorted(partition.owners, key=lambda owner: (owner.path != plain, owner.path))
            also = " and ".join(f"{owner.holder} at {owner.path}" for owner in others)
            yield Problem(
                first.path,
                f"{partition.at} is held by {first.holder} and also by {also}: each message is read twice",
                "stop the members of one kind: two kinds of clients in one group do not see each other's claims",
            )


def blocked_partitions(nodes: GroupNodes) -> Iterator[Problem]:
    """Find partitions held by a live instance that does not subscribe to the topic."""
    for blocked in nodes.description.blocked:
        if blocked.obstacle is Obstacle.NOT_SUBSCRIBED and isinstance(blocked.holder, Owner):
            yield Problem(
                blocked.holder.path,
                f"{blocked.at} is held by {blocked.holder.holder}, which does not subscribe to the topic",
                f"if the claim is no longer needed: {release(nodes, blocked.holder)}",
            )


def unowned_partitions(nodes: GroupNodes) -> Iterator[Problem]:
    """Find partitions of subscribed topics that no instance owns."""
    if nodes.has_forbidden_nodes(Part.IDS) or nodes.has_forbidden_nodes(Part.OWNERS):
        return
    topics: dict[str, list[int]] = {}
    for at in nodes.description.unowned:
        if nodes.is_missing(at.topic):
            continue
        topics.setdefault(at.topic, []).append(at.partition)
    for topic, numbers in topics.items():
        yield Problem(
            nodes.paths.owned_topic(topic),
            f"no instance owns {some_partitions(numbers)} of the subscribed topic {topic!r}",
            f"if this persists, restart the instances that own too few: {command('members', 'list', nodes.group)}",
        )
