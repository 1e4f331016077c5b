"""The layout of Trident's Kafka spouts (storm-kafka), transactional and opaque.

    {root}/{group}/user/partition_{partition}/{transaction}
    {root}/{group}/user/{topic}/partition_{partition}/{transaction}      if the spout reads several topics
    {root}/{group}/coordinator/currtx                                    the next transaction to commit

    {"offset":41,"nextOffset":55,"partition":3,"topic":"orders","broker":{...},"topology":{...}}

`root` is `transactional.zookeeper.root` of Storm's configuration, and the group is the id of the stream. A node
describes the batch of one transaction: its first message, and the message after its last one.

The highest committed transaction counts, that is the highest one below `currtx`: its `nextOffset` is the next message
to read. A transactional spout also writes the batches that it has only emitted. Trident emits these again when it
starts, so they are not taken for committed. If no transaction is committed yet, the next message is the first of the
lowest batch. Without a coordinator, as in a copy of `user`, the highest transaction counts.

So an offset changes by a write to the node of its batch or to `currtx`, and its zxid and time are those of the later.

A transaction cannot be written without the others that belong to it, so zkgroups never writes here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ..znodes.codecs import DecodingError, is_int, parse_json
from ..znodes.paths import parent
from .layout import (
    Field,
    Layout,
    LayoutNode,
    LayoutOffset,
    PathTemplate,
    Segment,
    Stored,
    committed,
    latest,
    malformed,
    next_message,
    partition_of,
)
from .storm import is_partition, topic_of
from .value_format import decode_object, json_number, object_or_none

_BATCH, _COORDINATOR, _CURRENT = range(3)
"""The numbers of the templates."""

_FIRST_TRANSACTION: Final = 1
_TRANSACTION: Final = Segment.parse("{transaction}")


class TridentLayout(Layout):
    """The offsets of the streams below one root."""

    def __init__(self, root: str) -> None:
        path, text = f"{root.rstrip('/')}/{{group}}", f"trident:{root}"
        templates = [
            PathTemplate.parse(f"{path}/user/{{topic}}/partition_{{partition}}/{{transaction}}", optional=Field.TOPIC),
            PathTemplate.parse(f"{path}/coordinator"),
            PathTemplate.parse(f"{path}/coordinator/currtx"),
        ]
        super().__init__(text, text, templates, Stored.NEXT)

    def offsets(self, group: str, nodes: Sequence[LayoutNode]) -> Iterator[LayoutOffset]:
        """Yield the offset of the transaction that counts, for each partition."""
        batches = [node for node in nodes if node.template == _BATCH]
        coordinator = [node for node in nodes if node.template != _BATCH]
        current = next((node for node in coordinator if node.template == _CURRENT), None)
        try:
            next_transaction = _next_transaction(coordinator)
        except _UnreadableNode as unreadable:
            yield unreadable.in_place(group)
            return
        directories: dict[str, list[LayoutNode]] = {}
        hidden: dict[str, LayoutOffset] = {}
        for node in batches:
            if node.forbidden is None:
                directories.setdefault(parent(node.path), []).append(node)
            else:  # it may be the batch that counts
                directory = parent(node.path) if Field.TRANSACTION in node.fields else node.path
                topic, partition = node.fields.get(Field.TOPIC), partition_of(node.fields)
                hidden.setdefault(directory, LayoutOffset(group, topic, partition, node.forbidden, None))
        yield from hidden.values()
        known = (siblings for directory, siblings in directories.items() if directory not in hidden)
        yield from latest(_offset(group, siblings, next_transaction, current) for siblings in known)


class _UnreadableNode(Exception):
    """The current transaction cannot be read, so no transaction is known to be committed. Never leaves this module."""

    def __init__(self, node: LayoutNode, reason: str) -> None:
        super().__init__(reason)
        self._node = node
        self._reason = reason

    def in_place(self, group: str) -> LayoutOffset:
        """Return the node in the place of all offsets of the group."""
        if self._node.forbidden is not None:
            return LayoutOffset(group, None, None, self._node.forbidden, None)
        return malformed(group, None, None, self._node, self._reason)


def _next_transaction(nodes: Sequence[LayoutNode]) -> int | None:
    """Return the next transaction to commit; None without a coordinator."""
    for node in nodes:
        if node.forbidden is not None:
            raise _UnreadableNode(node, node.forbidden.reason)
        if node.template == _CURRENT:
            number = parse_json(node.data.decode(errors="replace"))
            if not is_int(number):
                raise _UnreadableNode(node, "not the number of a transaction")
            return number
    return _FIRST_TRANSACTION if nodes else None


def _offset(
    group: str, batches: Sequence[LayoutNode], next_transaction: int | None, current: LayoutNode | None
) -> LayoutOffset:
    """Return the offset of a partition, given its batches."""
    ordered = sorted(batches, key=_transaction)
    done = [node for node in ordered if next_transaction is None or _transaction(node) < next_transaction]
    node, name = (done[-1], "nextOffset") if done else (ordered[0], "offset")
    if current is not None and current.zxid > node.zxid:
        node = node._replace(zxid=current.zxid, modified_ms=current.modified_ms)
    topic, partition = node.fields.get(Field.TOPIC), partition_of(node.fields)
    try:
        if partition is None:
            raise DecodingError("its name is not a partition")
        values = decode_object(node.data)
        offset = next_message(json_number(values, name), Stored.NEXT)
        return committed(group, topic_of(values, node.fields), partition, offset, node)
    except DecodingError as reason:
        return malformed(group, topic, partition, node, str(reason))


def _transaction(node: LayoutNode) -> int:
    return int(node.fields[Field.TRANSACTION])


def recognize(names: Sequence[str], data: bytes) -> str | None:
    """Return the root of the layout, if a node looks like a batch of Trident.

    >>> recognize(["transactional", "orders", "user", "partition_3", "17"], b'{"offset":41,"nextOffset":55}')
    '/transactional'
    """
    values = object_or_none(data)
    if values is None or not {"offset", "nextOffset"} <= values.keys():
        return None
    if not is_partition(names[:-1]) or _TRANSACTION.match(names[-1]) is None:
        return None
    at = next((at for at in (-3, -4) if len(names) >= 1 - at and names[at] == "user"), None)
    return None if at is None else "/" + "/".join(names[: at - 1])
