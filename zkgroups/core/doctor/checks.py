"""What can be wrong in a group, as far as its znodes show it: one function for each check.

A check takes everything of a group that was read, and yields what it hits. It never stops another. What each is called,
how bad it is and why it is left to a person stands in the table of `check_table.py`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from ...exceptions import InvalidNameError
from ..times import to_ms, utc
from ..znodes.group_description import Obstacle
from ..znodes.group_view import RegisteredInstance
from ..znodes.names import check_instance, parse_partition
from ..znodes.offset_codec import MAX_OFFSET
from ..znodes.owner_codec import decode_owned_topic, decode_owner_path
from ..znodes.paths import Part, join, parent
from ..znodes.session_ids import session_hex
from ..znodes.topic_partition import TopicPartition
from ..znodes.values import (
    Dialect,
    ForbiddenNode,
    MalformedNode,
    Owner,
    Pattern,
    Registration,
    UnevaluableRegistration,
    unreadable_part,
)
from .advice import cannot_be_read, command, delete_node, end_session, exactly, repair_group, some_partitions
from .findings import Remove, Repair, Rewrite, Severity
from .group_nodes import Directory, GroupNodes, is_in
from .scala_blockers import poison


@dataclass(frozen=True, slots=True)
class Hit:
    """What one check says of one node; a severity here is for this one only."""

    path: str
    what: str
    fix: str
    repair: Repair | None = None
    severity: Severity | None = None


# Owners


def orphan_owners(nodes: GroupNodes) -> Iterator[Hit]:
    """An owner is one only with a registration of its name, by its session."""
    if nodes.hides(Part.IDS):
        return  # its registration may be one that we do not see
    for owner in nodes.description.orphans:
        yield Hit(
            owner.path,
            f"{owner.at} is held by {owner.holder}, which has no registration of that name and session",
            f"if it is no longer at work: {_release(nodes, owner)}",
        )


def _release(nodes: GroupNodes, owner: Owner) -> str:
    at = owner.at
    session = session_hex(owner.session)
    return command("release", nodes.group, at.topic, str(at.partition), expect_owner=owner.id, expect_session=session)


def persistent_owners(nodes: GroupNodes) -> Iterator[Hit]:
    """An owner node of no session stays when its owner is long gone, and nobody can claim the partition."""
    for node in nodes.malformed(Part.OWNERS):
        if node.session == 0:
            at = _owned_partition(node.path)
            repair = _remove_owner(nodes, node) if at and node.path not in nodes.nested else None
            yield Hit(
                node.path,
                f"{at or 'it'} is held by {node.shown}, by a node of no session, which will never go by itself",
                delete_node(node.path) if repair is None else repair_group(nodes),
                repair,
            )


def _owned_partition(path: str) -> TopicPartition | None:
    topic, name = path.split("/")[-2:]
    return decode_owner_path(topic, name)


def _remove_owner(nodes: GroupNodes, node: MalformedNode) -> Repair | None:
    """Only where it names an instance, and none of that name is registered after the repairs of registrations."""
    names = _names_of_owner(node.data)
    registered = {instance.id for instance in nodes.view.instances if not _is_removable(nodes, instance)}
    if not names or registered.intersection(names) or nodes.hides(Part.IDS):
        return None
    return Repair("delete the node", (Remove(node.path, node.version, persistent=True),), unless=names)


def _names_of_owner(data: bytes) -> tuple[str, ...]:
    """The ids that the text of an owner may mean: all of it, or with the number of a stream cut off."""
    try:
        owner = check_instance(data.decode())
    except (UnicodeDecodeError, InvalidNameError):
        return ()
    stem, dash, stream = owner.rpartition("-")
    return (owner, stem) if stem and dash and stream.isascii() and stream.isdigit() else (owner,)


def unreadable_owners(nodes: GroupNodes) -> Iterator[Hit]:
    """Neither we nor others can say who holds the partition, or which partition it is."""
    for node in nodes.malformed(Part.OWNERS):
        if node.session:
            yield Hit(node.path, cannot_be_read("the owner", node), end_session(node.session))


def two_owners(nodes: GroupNodes) -> Iterator[Hit]:
    """pykafka's nodes have other paths, so they do not keep others from the same partition, nor others them."""
    for partition in nodes.description.partitions:
        if len(partition.owners) > 1:
            plain = nodes.paths.owner(partition.at)
            first, *others = sorted(partition.owners, key=lambda owner: (owner.path != plain, owner.path))
            also = " and ".join(f"{owner.holder} at {owner.path}" for owner in others)
            yield Hit(
                first.path,
                f"{partition.at} is held by {first.holder} and also by {also}: each message is read twice",
                "stop the members of one kind: two kinds of clients in one group do not see each other's claims",
            )


def blocked_partitions(nodes: GroupNodes) -> Iterator[Hit]:
    """By somebody alive who is not to have it; what else may stand in the way of members has checks of its own."""
    for blocked in nodes.description.blocked:
        if blocked.obstacle is Obstacle.NOT_SUBSCRIBED and isinstance(blocked.holder, Owner):
            yield Hit(
                blocked.holder.path,
                f"{blocked.at} is held by {blocked.holder.holder}, which does not subscribe to the topic",
                f"if it is no longer needed: {_release(nodes, blocked.holder)}",
            )


def unowned_partitions(nodes: GroupNodes) -> Iterator[Hit]:
    """Nobody reads them, although somebody subscribes to the topic."""
    if nodes.hides(Part.IDS) or nodes.hides(Part.OWNERS):
        return
    topics: dict[str, list[int]] = {}
    for at in nodes.description.unowned:
        if nodes.is_gone(at.topic):
            continue
        topics.setdefault(at.topic, []).append(at.partition)
    for topic, numbers in topics.items():
        yield Hit(
            nodes.paths.owned_topic(topic),
            f"nobody owns {some_partitions(numbers)} of {topic!r}, which is subscribed to",
            f"if it stays so, restart the instances that own too little: {command('members', 'list', nodes.group)}",
        )


# Registrations


def poisonous_registrations(nodes: GroupNodes) -> Iterator[Hit]:
    """What Scala members cannot read makes all of them give up their rebalances."""
    scala = Dialect.SCALA in nodes.dialects()
    for id, data, session in _poisonous(nodes):
        if (reason := poison(data)) is not None:
            yield Hit(
                join(nodes.paths.ids, id),
                f"the registration of {id!r} stops every Scala member of the group: {reason}",
                end_session(session),
                severity=None if scala else Severity.WARNING,
            )


def _poisonous(nodes: GroupNodes) -> Iterator[tuple[str, bytes, int]]:
    """What may be: registrations that we cannot read, and pykafka's, which harm nobody where Scala is not."""
    with_scala = Dialect.SCALA in nodes.dialects()
    for node in nodes.view.instances:
        found = node.registration
        if isinstance(found, Registration):
            if found.dialect is Dialect.PYKAFKA and with_scala:
                yield node.id, next(iter(found.streams)).encode(), node.session
        elif isinstance(malformed := unreadable_part(found), MalformedNode):
            yield node.id, malformed.data, node.session


def unreadable_registrations(nodes: GroupNodes) -> Iterator[Hit]:
    """We cannot say what it subscribes to; Scala members may."""
    unevaluable = {found.node for found in _unevaluable(nodes)}
    for node in nodes.malformed(Part.IDS):
        if node not in unevaluable and poison(node.data) is None:
            yield Hit(node.path, cannot_be_read("the registration", node), end_session(node.session))


def unevaluable_subscriptions(nodes: GroupNodes) -> Iterator[Hit]:
    """The instance may subscribe to any topic. Members of zkgroups share the partitions without it."""
    for found in _unevaluable(nodes):
        expression = next(iter(found.registration.streams))
        stop = end_session(found.node.session)
        yield Hit(
            found.node.path,
            f"the {found.registration.pattern} {expression!r:.80} cannot be evaluated: {found.reason}",
            f"use a simpler expression or fewer topics; if the instance is not needed: {stop}",
        )


def _unevaluable(nodes: GroupNodes) -> Iterator[UnevaluableRegistration]:
    registrations = (instance.registration for instance in nodes.view.instances)
    return (found for found in registrations if isinstance(found, UnevaluableRegistration))


def persistent_registrations(nodes: GroupNodes) -> Iterator[Hit]:
    """Old clients leave partitions to an instance that has no client any more."""
    for node in nodes.view.instances:
        if node.persistent:
            path = join(nodes.paths.ids, node.id)
            what = f"{node.id!r} is registered by a node of no session, which will never go by itself"
            repair = _remove_registration(path, node) if _is_removable(nodes, node) else None
            yield Hit(
                path,
                f"{what}: old clients leave partitions to it",
                delete_node(path) if repair is None else repair_group(nodes),
                repair,
            )


def _is_removable(nodes: GroupNodes, node: RegisteredInstance) -> bool:
    """Whether it has no client, nothing stands below its node, and we may read it: the repair needs rights on it."""
    if not node.persistent or isinstance(node.registration, ForbiddenNode):
        return False
    return node in nodes.view.dead and join(nodes.paths.ids, node.id) not in nodes.nested


def _remove_registration(path: str, node: RegisteredInstance) -> Repair:
    """Safe whoever is registered: the deletion itself proves that the node belongs to no session."""
    return Repair("delete the node", (Remove(path, node.version, persistent=True),), hurts_nobody=True)


def dialects_kazoo_go_cannot_read(nodes: GroupNodes) -> Iterator[Hit]:
    """kazoo-go insists on a number for the timestamp, and Scala writes text."""
    if Dialect.KAZOO_GO not in nodes.dialects():
        return
    for path, registration in nodes.registrations():
        if registration.dialect is Dialect.SCALA and registration.timestamp is not None:
            yield Hit(
                path,
                "its timestamp is text, which the kazoo-go members of the group cannot read",
                "stop the members of one kind: kazoo-go and Scala members cannot share a group",
            )


def mixed_dialects(nodes: GroupNodes) -> Iterator[Hit]:
    """Our own registrations are readable by all; only pykafka's owners do not keep us off, nor ours them."""
    dialects = nodes.dialects()
    pykafka = Dialect.PYKAFKA in dialects
    if len(dialects if pykafka else dialects - {Dialect.ZKGROUPS}) > 1:
        names = ", ".join(sorted(dialects))
        yield Hit(
            nodes.paths.ids,
            f"members of several kinds are registered: {names}; they do not wholly understand each other",
            f"leave one kind running: {command('members', 'list', nodes.group)}",
            severity=Severity.ERROR if pykafka else None,
        )


# Topics


def gone_topics(nodes: GroupNodes) -> Iterator[Hit]:
    """Kafka has deleted the topic, or has never had it. In a group that is litter there is no more to say."""
    if nodes.is_litter:
        return
    yield from _gone_subscriptions(nodes)
    for directory in nodes.directories:
        if (topic := _topic_of(nodes, directory.path)) is not None and nodes.is_gone(topic):
            yield _gone(nodes, topic, directory)


def _gone_subscriptions(nodes: GroupNodes) -> Iterator[Hit]:
    for path, registration in nodes.registrations():
        static = registration.streams if registration.pattern is Pattern.STATIC else ()
        if gone := [topic for topic in static if nodes.is_gone(topic)]:
            names = ", ".join(map(repr, gone))
            yield Hit(path, f"it subscribes to {names}, which Kafka does not have", "create it, or subscribe otherwise")


def _topic_of(nodes: GroupNodes, path: str) -> str | None:
    above, _, name = path.rpartition("/")
    if above == nodes.paths.owners:
        return decode_owned_topic(name)
    return name if above == nodes.paths.offsets else None


def _gone(nodes: GroupNodes, topic: str, directory: Directory) -> Hit:
    part = "owners" if parent(directory.path) == nodes.paths.owners else "offsets"
    if not directory.names:
        empty = not directory.data and nodes.is_quiet
        step = Remove(directory.path, directory.version)
        return Hit(
            directory.path,
            f"an empty directory for {part} of {topic!r}, which Kafka does not have",
            repair_group(nodes),
            Repair("delete the empty directory", (step,)) if empty else None,
            severity=Severity.INFO,
        )
    delete = command("offsets", "delete", nodes.group, topic=exactly(topic))
    return Hit(
        directory.path,
        f"there are {part} of {topic!r}, which Kafka does not have",
        delete if part == "offsets" else f"see who owns it: {command('owners', 'list', nodes.group)}",
    )


def partitions_past_the_end(nodes: GroupNodes) -> Iterator[Hit]:
    """The topic has no such partition: it was recreated with fewer, or somebody mistyped."""
    for partition in nodes.description.partitions:
        at = partition.at
        known = nodes.view.partitions.get(at.topic)
        if known is None or at.partition in known:
            continue
        topic = f"{at.topic}:{at.partition}"
        what = f"Kafka's topic {at.topic!r} has no partition {at.partition}"
        if partition.offset:
            delete = command("offsets", "delete", nodes.group, topic=topic)
            yield Hit(nodes.paths.offset(at), f"{what}, and there is an offset of it", delete)
        for owner in partition.owners:
            yield Hit(owner.path, f"{what}, and it is held by {owner.holder}", _release(nodes, owner))


def unreadable_topics(nodes: GroupNodes) -> Iterator[Hit]:
    """Scala members read Kafka's own node of each topic, too."""
    for node in nodes.view.unreadable:
        if isinstance(node, MalformedNode) and not is_in(node.path, nodes.paths.root):
            yield Hit(node.path, cannot_be_read("Kafka's topic", node), "ask those who run Kafka")


# Offsets


def padded_offsets(nodes: GroupNodes) -> Iterator[Hit]:
    """A number with blanks around it: a person sees no difference, Java does."""
    for node in nodes.malformed(Part.OFFSETS):
        if (offset := _padded(node)) is None:
            continue
        step = Rewrite(node.path, node.data, offset, node.version)
        number = offset.decode()
        yield Hit(
            node.path,
            f"{node.shown} has blanks around the number, which stop Scala members as they start",
            _set(nodes, node.path, number),
            Repair(f"write {number} instead of {node.shown}", (step,)) if nodes.is_quiet else None,
        )


def unreadable_offsets(nodes: GroupNodes) -> Iterator[Hit]:
    """No number, or one that no offset can be: Scala members do not start, and nobody knows where to go on."""
    for node in nodes.malformed(Part.OFFSETS):
        if _names_partition(node.path) and not _is_negative(node.data) and _padded(node) is None:
            what = f"{cannot_be_read('the offset', node)}; it stops Scala members as they start"
            yield Hit(node.path, what, _set(nodes, node.path, "OFFSET"))


def negative_offsets(nodes: GroupNodes) -> Iterator[Hit]:
    """Scala members go where their policy says, which is the start or the end of the log."""
    for node in nodes.malformed(Part.OFFSETS):
        if _names_partition(node.path) and _is_negative(node.data):
            what = f"the offset {node.shown} is negative: members go to where auto.offset.reset says"
            yield Hit(node.path, what, _set(nodes, node.path, "OFFSET"))


def offsets_of_no_partition(nodes: GroupNodes) -> Iterator[Hit]:
    """Nobody reads it."""
    for node in nodes.malformed(Part.OFFSETS):
        if not _names_partition(node.path):
            name = node.path.rpartition("/")[2]
            yield Hit(node.path, f"{name!r} is no partition, so nobody reads it", delete_node(node.path))


def stale_offsets(nodes: GroupNodes) -> Iterator[Hit]:
    """Nobody has committed for long: nobody reads the topic, or nothing is written to it."""
    topics: dict[str, list[int]] = {}
    for offset in nodes.view.offsets:
        topics.setdefault(offset.at.topic, []).append(to_ms(offset.committed_at))
    stale = {topic: max(times) for topic, times in topics.items() if max(times) < nodes.now_ms - nodes.stale_ms}
    for topic, last_ms in stale.items():
        yield Hit(
            nodes.paths.offset_topic(topic),
            f"no offset of {topic!r} was committed since {utc(last_ms)}",
            f"if nobody needs them: {command('offsets', 'delete', nodes.group, topic=exactly(topic))}",
        )


def _padded(node: MalformedNode) -> bytes | None:
    """The plain number in an offset that only has blanks around it."""
    bare = node.data.strip(b" \t\r\n")
    is_number = re.fullmatch(rb"[0-9]{1,19}", bare) and int(bare) <= MAX_OFFSET
    return bare if is_number and _names_partition(node.path) else None


def _is_negative(data: bytes) -> bool:
    return bool(re.fullmatch(rb"-[0-9]+", data))


def _names_partition(path: str) -> bool:
    return parse_partition(path.rpartition("/")[2]) is not None


def _set(nodes: GroupNodes, path: str, offset: str) -> str:
    """What is there is no offset, so nobody knows whether the new one goes back."""
    topic, partition = path.split("/")[-2:]
    options: dict[str, str | bool] = {"backward": True} if nodes.is_quiet else {"backward": True, "force": True}
    return command("offsets", "set", nodes.group, topic, partition, offset, **options)


# The group as a whole


def hidden_nodes(nodes: GroupNodes) -> Iterator[Hit]:
    """What may not be read may be wrong, and what follows from it is not known."""
    for node in nodes.view.unreadable:
        if isinstance(node, ForbiddenNode):
            yield Hit(node.path, "it may not be read, so nothing is known of it", "look again as somebody who may")


def empty_groups(nodes: GroupNodes) -> Iterator[Hit]:
    """Directories that somebody left behind, or made beforehand."""
    if nodes.is_litter:
        what = "nobody is registered, nothing is owned, and no offset is kept: the group is only directories"
        yield Hit(nodes.paths.root, what, repair_group(nodes), _remove_all(nodes))


def _remove_all(nodes: GroupNodes) -> Repair | None:
    """Only where there is nothing in it but what was seen, and no data anywhere."""
    seen = {directory.path: directory for directory in nodes.directories}
    below = {join(path, name) for path, directory in seen.items() for name in directory.names}
    if nodes.paths.root not in seen or below | {nodes.paths.root} != seen.keys():
        return None
    if any(directory.data for directory in seen.values()):
        return None
    deepest_first = sorted(seen.values(), key=lambda directory: (-directory.path.count("/"), directory.path))
    steps = tuple(Remove(directory.path, directory.version) for directory in deepest_first)
    return Repair("delete the group's empty directories", steps)


def nested_nodes(nodes: GroupNodes) -> Iterator[Hit]:
    """A name with a slash in it makes a node below another, where nobody looks, and holds it in its place."""
    for path, names in nodes.nested.items():
        shown = ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        what = f"there are nodes below it, where none belong: {shown}"
        yield Hit(path, what, f"if nobody needs them: zkCli.sh deleteall {shlex.quote(path)}")


def open_directories(nodes: GroupNodes) -> Iterator[Hit]:
    """Old clients make their nodes so that everybody may change them; whoever can connect can."""
    if nodes.open_to_all:
        names = ", ".join(
            "the group" if path == nodes.paths.root else path.rpartition("/")[2] for path in nodes.open_to_all
        )
        what = f"everybody who can connect may change {names}"
        yield Hit(
            nodes.paths.root, what, f"if that is not wanted: zkCli.sh setAcl -R {shlex.quote(nodes.paths.root)} ACL"
        )
