"""Check the offsets that brokers of Kafka 1.1.0 commit to the directory `offset` instead of `offsets`.

They are those of clients that commit through a broker with the oldest version of the request. Only a broker of that
release reads them. So when it is updated, these clients get the offsets in `offsets` again.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from ..layouts.kafka_1_1_0 import DIRECTORY
from ..layouts.layout import LayoutOffset
from ..znodes.paths import join
from ..znodes.values import CommittedOffset, MalformedNode
from .advice import command, some_partitions, topic_value
from .findings import Problem, Severity
from .group_nodes import GroupNodes


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
