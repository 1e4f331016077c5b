"""Checks of offset nodes: by themselves, against the topics that Kafka has, and against the logs of the brokers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..health import Status, Verdict, next_step, of_partitions
from ..layouts.layout import LayoutOffset
from ..layouts.legacy import DIRECTORY
from ..offsets.lag import GroupLag, LagNote
from ..times import to_ms, utc
from ..znodes.codecs import MAX_OFFSET, decode_owned_topic
from ..znodes.paths import GroupPaths, Part, join, parent
from ..znodes.topic_partition import TopicPartition, parse_partition
from ..znodes.values import CommittedOffset, MalformedNode, Pattern
from .findings import (
    Problem,
    Remove,
    Repair,
    Rewrite,
    Severity,
    cannot_be_read,
    command,
    delete_node,
    release,
    repair_group,
    reset_offsets,
    some_partitions,
    topic_value,
)
from .group_nodes import Directory, GroupNodes, is_in

# Checks of offset nodes: invalid offsets, invalid names, and offsets without a recent commit.


def padded_offsets(nodes: GroupNodes) -> Iterator[Problem]:
    """Find offsets with whitespace around the number, which Java does not accept."""
    for node in nodes.malformed(Part.OFFSETS):
        if (offset := _padded(node)) is None:
            continue
        step = Rewrite(node.path, node.data, offset, node.version)
        number = offset.decode()
        yield Problem(
            node.path,
            f"{node.shown} has whitespace around the number, which stops Scala members at their start",
            _set_command(nodes, node.path, number),
            Repair(f"write {number} instead of {node.shown}", (step,)) if nodes.is_quiet else None,
        )


def unreadable_offsets(nodes: GroupNodes) -> Iterator[Problem]:
    """Find offsets that are not valid numbers. Scala members cannot start with them."""
    for node in nodes.malformed(Part.OFFSETS):
        if _names_partition(node.path) and not _is_negative(node.data) and _padded(node) is None:
            what = f"{cannot_be_read('the offset', node)}; it stops Scala members at their start"
            yield Problem(node.path, what, _set_command(nodes, node.path, "OFFSET"))


def negative_offsets(nodes: GroupNodes) -> Iterator[Problem]:
    """Find negative offsets, for which Scala members apply auto.offset.reset."""
    for node in nodes.malformed(Part.OFFSETS):
        if _names_partition(node.path) and _is_negative(node.data):
            what = f"the offset {node.shown} is negative: members start where auto.offset.reset says"
            yield Problem(node.path, what, _set_command(nodes, node.path, "OFFSET"))


def misnamed_offsets(nodes: GroupNodes) -> Iterator[Problem]:
    """Find nodes among the offsets whose names are not partition numbers."""
    for node in nodes.malformed(Part.OFFSETS):
        if not _names_partition(node.path):
            name = node.path.rpartition("/")[2]
            yield Problem(
                node.path, f"{name!r} is not a partition number, so no client reads the node", delete_node(node.path)
            )


def stale_offsets(nodes: GroupNodes) -> Iterator[Problem]:
    """Find topics without a recent commit."""
    topics: dict[str, list[int]] = {}
    for offset in nodes.view.offsets:
        topics.setdefault(offset.at.topic, []).append(to_ms(offset.committed_at))
    stale = {topic: max(times) for topic, times in topics.items() if max(times) < nodes.now_ms - nodes.stale_ms}
    for topic, last_ms in stale.items():
        yield Problem(
            nodes.paths.offset_topic(topic),
            f"no offset of {topic!r} was committed since {utc(last_ms)}",
            f"if they are no longer needed: {command('offsets', 'delete', nodes.group, topic=topic_value(topic))}",
        )


def _padded(node: MalformedNode) -> bytes | None:
    """Return the number without the whitespace around it; None if the data is not such a number."""
    bare = node.data.strip(b" \t\r\n")
    is_number = re.fullmatch(rb"[0-9]{1,19}", bare) and int(bare) <= MAX_OFFSET
    return bare if is_number and _names_partition(node.path) else None


def _is_negative(data: bytes) -> bool:
    return bool(re.fullmatch(rb"-[0-9]+", data))


def _names_partition(path: str) -> bool:
    return parse_partition(path.rpartition("/")[2]) is not None


def _set_command(nodes: GroupNodes, path: str, offset: str) -> str:
    """Return the command that sets the offset. The old one is invalid, so the new one may go back."""
    topic, partition = path.split("/")[-2:]
    options: dict[str, str | bool] = {"backward": True} if nodes.is_quiet else {"backward": True, "force": True}
    return command("offsets", "set", nodes.group, topic, partition, offset, **options)


# Check the offsets that brokers of Kafka 1.1.0 commit to the directory `offset` instead of `offsets`.
#
# They are those of clients that commit through a broker with the oldest version of the request. Only a broker of that
# release reads them. So when it is updated, these clients get the offsets in `offsets` again.


def singular_offsets(nodes: GroupNodes) -> Iterator[Problem]:
    """Find topics with offsets in the directory of Kafka 1.1.0, and compare them with the committed offsets."""
    topics: dict[str, list[LayoutOffset]] = {}
    for each in nodes.singular:
        if each.topic is not None:
            topics.setdefault(each.topic, []).append(each)
    for topic, found in topics.items():
        yield from _of_topic(nodes, topic, found)


def _of_topic(nodes: GroupNodes, topic: str, found: Sequence[LayoutOffset]) -> Iterator[Problem]:
    committed = {offset.at: offset.offset for offset in nodes.view.offsets}
    offsets = [each.found for each in found if isinstance(each.found, CommittedOffset)]
    newer = [each.at.partition for each in offsets if each.offset > committed.get(each.at, -1)]
    older = [each.at.partition for each in offsets if each.offset < committed.get(each.at, -1)]
    path = join(nodes.paths.root, DIRECTORY, topic)
    if newer:
        yield Problem(
            path,
            f"Kafka 1.1.0 has committed newer offsets here than in offsets ({some_partitions(newer)}): "
            "with any other release, the clients read messages again",
            command("offsets", "adopt", nodes.group, topic=topic_value(topic)),
        )
    elif offsets:
        compared = f"older than those in offsets ({some_partitions(older)})" if older else "the same as in offsets"
        yield Problem(
            path,
            f"Kafka 1.1.0 has committed offsets here, {compared}",
            f"if no broker of Kafka 1.1.0 is left: zkCli.sh deleteall {shlex.quote(path)}",
            severity=Severity.INFO,
        )
    for each in found:
        if isinstance(each.found, MalformedNode):
            yield Problem(
                each.found.path,
                f"Kafka 1.1.0 has committed an offset here that cannot be read: {each.found.reason} "
                f"({each.found.shown})",
                f"if it is not needed: zkCli.sh delete {shlex.quote(each.found.path)}",
            )


# Checks against the topics that Kafka has: missing topics, missing partitions, and unreadable topic nodes.


def missing_topics(nodes: GroupNodes) -> Iterator[Problem]:
    """Find topics that Kafka does not have. Not in a group of directories only, which `empty_groups` reports."""
    if nodes.has_only_directories:
        return
    yield from _missing_subscriptions(nodes)
    for directory in nodes.directories:
        if (topic := _topic_of(nodes, directory.path)) is not None and nodes.is_missing(topic):
            yield _missing_topic(nodes, topic, directory)


def _missing_subscriptions(nodes: GroupNodes) -> Iterator[Problem]:
    for path, registration in nodes.registrations():
        static = registration.streams if registration.pattern is Pattern.STATIC else ()
        if missing := [topic for topic in static if nodes.is_missing(topic)]:
            names = ", ".join(map(repr, missing))
            yield Problem(
                path,
                f"it subscribes to {names}, which Kafka does not have",
                "create the topic, or change the subscription",
            )


def _topic_of(nodes: GroupNodes, path: str) -> str | None:
    above, _, name = path.rpartition("/")
    if above == nodes.paths.owners:
        return decode_owned_topic(name)
    return name if above == nodes.paths.offsets else None


def _missing_topic(nodes: GroupNodes, topic: str, directory: Directory) -> Problem:
    part = "owners" if parent(directory.path) == nodes.paths.owners else "offsets"
    if not directory.names:
        empty = not directory.data and nodes.is_quiet
        step = Remove(directory.path, directory.version)
        return Problem(
            directory.path,
            f"an empty directory for {part} of {topic!r}, which Kafka does not have",
            repair_group(nodes),
            Repair("delete the empty directory", (step,)) if empty else None,
            severity=Severity.INFO,
        )
    delete = command("offsets", "delete", nodes.group, topic=topic_value(topic))
    return Problem(
        directory.path,
        f"it has {part} of {topic!r}, which Kafka does not have",
        delete if part == "offsets" else f"find the owners: {command('owners', 'list', nodes.group)}",
    )


def unknown_partitions(nodes: GroupNodes) -> Iterator[Problem]:
    """Find owners and offsets of partitions that the topic does not have, e.g. after it was recreated with fewer."""
    for partition in nodes.description.partitions:
        at = partition.at
        known = nodes.view.partitions.get(at.topic)
        if known is None or at.partition in known:
            continue
        topic = f"{at.topic}:{at.partition}"
        what = f"Kafka's topic {at.topic!r} has no partition {at.partition}"
        if partition.offset:
            delete = command("offsets", "delete", nodes.group, topic=topic)
            yield Problem(nodes.paths.offset(at), f"{what}, but the group has an offset for it", delete)
        for owner in partition.owners:
            yield Problem(owner.path, f"{what}, but {owner.holder} holds it", release(nodes, owner))


def unreadable_topics(nodes: GroupNodes) -> Iterator[Problem]:
    """Find topic nodes of Kafka that cannot be read. Scala members read them, too."""
    for node in nodes.view.unreadable:
        if isinstance(node, MalformedNode) and not is_in(node.path, nodes.paths.root):
            yield Problem(node.path, cannot_be_read("Kafka's topic node", node), "ask the operators of Kafka")


# Checks of committed offsets against the logs of the brokers, and of statuses, for each topic of a group.


class GroupVerdicts(NamedTuple):
    """The verdicts on the partitions of a group, and the number of its live instances."""

    group: str
    members: int
    partitions: tuple[tuple[TopicPartition, Verdict], ...]


def past_end_offsets(lag: GroupLag) -> Iterator[Problem]:
    """Find offsets past the log end, where no client can read."""
    for topic, numbers in _partitions_with(lag, LagNote.PAST_END).items():
        what = f"the offsets of {some_partitions(numbers)} are past the log end: {topic!r} may have been recreated"
        yield Problem(GroupPaths(lag.group).offset_topic(topic), what, reset_offsets(lag.group, topic))


def before_start_offsets(lag: GroupLag) -> Iterator[Problem]:
    """Find offsets before the log start: the brokers have deleted messages that the group had not read."""
    for topic, numbers in _partitions_with(lag, LagNote.BEFORE_START).items():
        what = f"the offsets of {some_partitions(numbers)} are before the log start: unread messages were deleted"
        yield Problem(GroupPaths(lag.group).offset_topic(topic), what, reset_offsets(lag.group, topic))


def stopped_partitions(found: GroupVerdicts) -> Iterator[Problem]:
    """Find partitions whose messages wait, although the group is in use."""
    return _with_status(found, Status.STOP)


def abandoned_partitions(found: GroupVerdicts) -> Iterator[Problem]:
    """Find partitions whose messages wait, and that the group does not use any more."""
    return _with_status(found, Status.ABANDONED)


def _with_status(found: GroupVerdicts, status: Status) -> Iterator[Problem]:
    topics: dict[str, list[Verdict]] = {}
    for at, verdict in found.partitions:
        topics.setdefault(at.topic, []).append(verdict)
    for topic, verdicts in topics.items():
        if chosen := [verdict for verdict in verdicts if verdict.status is status]:
            what = f"{topic}: {of_partitions(chosen[0].reason, len(chosen), len(verdicts))}"
            fix = next_step(found.group, chosen[0], topic=topic, members=found.members)
            yield Problem(GroupPaths(found.group).offset_topic(topic), what, fix)


def _partitions_with(lag: GroupLag, note: LagNote) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for each in lag.partitions:
        if each.note is note:
            at = each.partition.at
            found.setdefault(at.topic, []).append(at.partition)
    return found
