"""The columns of the tables offsets, owners and members, with their types and meanings.

Columns are nullable unless marked otherwise. A malformed node has its bytes in `raw` and the reason in `problem`; the
columns that it would have filled are null. A forbidden node has a `problem` but no `raw`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from .tables import Table


class ColumnType(StrEnum):
    """The types, with their names in Spark."""

    STRING = "string"
    BINARY = "binary"
    INTEGER = "integer"
    LONG = "long"
    BOOLEAN = "boolean"
    TIMESTAMP = "timestamp"
    """In microseconds, in UTC."""
    COUNTS = "map"
    """A map from texts to integers."""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column, and what it means."""

    name: str
    type: ColumnType
    about: str
    nullable: bool = True


def _text(name: str, about: str, *, nullable: bool = True) -> TableColumn:
    return TableColumn(name, ColumnType.STRING, about, nullable)


def _time(name: str, about: str, *, nullable: bool = True) -> TableColumn:
    return TableColumn(name, ColumnType.TIMESTAMP, about, nullable)


_CLUSTER: Final = _text("cluster", "the hosts string with its chroot, or the name given", nullable=False)
_GROUP: Final = _text("group", "the group", nullable=False)
_TOPIC: Final = _text("topic", "the topic; null where a group's topics may not be listed")
_PARTITION: Final = TableColumn("partition", ColumnType.INTEGER, "the partition; null where they may not be listed")
LAYOUT_COLUMN: Final = _text("layout", "where the offset was found: `legacy`, or another layout; null if unknown")
LOG_COLUMNS: Final = (
    TableColumn("log_start", ColumnType.LONG, "the log start after the offset was read; null if unknown"),
    TableColumn("log_end", ColumnType.LONG, "the log end after the offset was read; null if unknown"),
)
"""From the brokers, if they are given."""
_LAST: Final = (
    TableColumn("raw", ColumnType.BINARY, "the bytes of a malformed node"),
    _text("problem", "the reason why the node cannot be read; null if it can"),
    _time("read_at", "when it was read, by the clock of the reader", nullable=False),
)

COLUMNS: Final[Mapping[Table, Sequence[TableColumn]]] = {
    Table.OFFSETS: (
        _CLUSTER,
        _GROUP,
        _TOPIC,
        _PARTITION,
        TableColumn("offset", ColumnType.LONG, "the next message to read"),
        TableColumn("commit_count", ColumnType.INTEGER, "how often the node was written since its creation"),
        _time("committed_at", "when it was last written, by the server's clock"),
        _time("created_at", "when the node was created, by the server's clock"),
        TableColumn("zxid", ColumnType.LONG, "the transaction that wrote it last"),
        _text("owner", "the data of the owner node (the first, if there are two); null without one"),
        LAYOUT_COLUMN,
        *LOG_COLUMNS,
        *_LAST,
    ),
    Table.OWNERS: (
        _CLUSTER,
        _GROUP,
        _TOPIC,
        _PARTITION,
        _text("owner", "the instance, or an instance and the number of its stream"),
        _text("session", "the session that owns it, in hexadecimal"),
        _time("claimed_at", "when the partition was claimed, by the server's clock"),
        TableColumn("zxid", ColumnType.LONG, "the transaction that claimed it"),
        *_LAST,
    ),
    Table.MEMBERS: (
        _CLUSTER,
        _GROUP,
        _text("instance", "the registered instance; null where they may not be listed"),
        _text("session", "the session of the registration, in hexadecimal"),
        _time("registered_at", "when it registered, by the server's clock"),
        TableColumn("subscription", ColumnType.COUNTS, "topics or expressions, with the number of streams"),
        _text("pattern", "the kind of subscription: static, white_list or black_list"),
        _text("dialect", "the client that wrote it: zkgroups, gateway, scala, kazoo-go or pykafka"),
        _text("client_id", "the client id of a Kafka client that joined through a gateway"),
        _text("client_host", "the host of such a client"),
        *_LAST,
    ),
}


def columns_json(columns: Sequence[TableColumn]) -> str:
    """Encode columns as Spark does, for summaries and for the footers of files."""
    fields = [
        {"metadata": {"comment": c.about}, "name": c.name, "nullable": c.nullable, "type": _type_json(c.type)}
        for c in columns
    ]
    return json.dumps({"fields": fields, "type": "struct"}, separators=(",", ":"), sort_keys=True)


def _type_json(kind: ColumnType) -> Any:
    if kind is not ColumnType.COUNTS:
        return kind.value
    return {"type": "map", "keyType": "string", "valueType": "integer", "valueContainsNull": False}


def column_types(text: str) -> dict[str, str]:
    """Return the types of encoded columns by name, as Spark shows them. Raise ValueError for other texts.

    >>> column_types(columns_json(COLUMNS[Table.MEMBERS]))["subscription"]
    'map<string,int>'
    """
    try:
        return {each["name"]: _shown_type(each["type"]) for each in json.loads(text)["fields"]}
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not the columns of a table: {error!r}") from error


def _shown_type(kind: Any) -> str:
    if isinstance(kind, dict):
        return f"map<{_shown_type(kind['keyType'])},{_shown_type(kind['valueType'])}>"
    return {"integer": "int", "long": "bigint"}.get(kind, str(kind))
