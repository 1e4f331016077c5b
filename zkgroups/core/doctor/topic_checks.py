"""Checks against the topics that Kafka has: missing topics, missing partitions, and unreadable topic nodes."""

from __future__ import annotations

from collections.abc import Iterator

from ..znodes.owner_codec import decode_owned_topic
from ..znodes.paths import parent
from ..znodes.values import (
    MalformedNode,
    Pattern,
)
from .advice import (
    cannot_be_read,
    command,
    release,
    repair_group,
    topic_value,
)
from .findings import Problem, Remove, Repair, Severity
from .group_nodes import Directory, GroupNodes, is_in


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
