"""Checks of offset nodes: invalid offsets, invalid names, and offsets without a recent commit."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..times import to_ms, utc
from ..znodes.names import parse_partition
from ..znodes.offset_codec import MAX_OFFSET
from ..znodes.paths import Part
from ..znodes.values import (
    MalformedNode,
)
from .advice import (
    cannot_be_read,
    command,
    delete_node,
    topic_value,
)
from .findings import Problem, Repair, Rewrite
from .group_nodes import GroupNodes


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
