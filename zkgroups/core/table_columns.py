"""The columns of all tables, with their types and meanings: offsets, owners, members, audits and histories."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

# The tables that hold the groups of a ZooKeeper: in Spark, and in snapshots.


class Table(StrEnum):
    """The tables that the data source can read, and that a snapshot has.

    offsets  cluster, group, topic, partition, offset, commit_count, committed_at, created_at, zxid, owner, layout,
             log_start, log_end
    owners   cluster, group, topic, partition, owner, session, claimed_at, zxid
    members  cluster, group, instance, session, registered_at, subscription, pattern, dialect, client_id, client_host

    All end with the columns `raw` and `problem`, which are null unless the node is unreadable, and `read_at`. The
    columns have comments: `df.schema["owner"].metadata["comment"]`.
    """

    OFFSETS = "offsets"
    OWNERS = "owners"
    MEMBERS = "members"


# The columns of the tables offsets, owners and members, with their types and meanings.
#
# Columns are nullable unless marked otherwise. A malformed node has its bytes in `raw` and the reason in `problem`;
# the columns that it would have filled are null. A forbidden node has a `problem` but no `raw`.


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


# The columns of an audit: its commits, and the last commit of each partition.


KEY: Final = ("group", "topic", "partition")
"""The columns that identify a partition of a group."""

_OFFSET: Final = TableColumn("offset", ColumnType.LONG, "the next message to read; null if malformed, see `problem`")
_COMMITTED_AT: Final = TableColumn("committed_at", ColumnType.TIMESTAMP, "when it was written, by the server's clock")
_ZXID: Final = TableColumn("zxid", ColumnType.LONG, "the transaction that wrote it")
_BATCH: Final = TableColumn("batch", ColumnType.LONG, "the batch in which it was read")
_KEY: Final = (
    TableColumn("group", ColumnType.STRING, "the group"),
    TableColumn("topic", ColumnType.STRING, "the topic"),
    TableColumn("partition", ColumnType.INTEGER, "the partition"),
)

COMMITS: Final[Sequence[TableColumn]] = (
    *_KEY,
    TableColumn("before", ColumnType.LONG, "the previous offset in the audit; null if this is the first"),
    _OFFSET,
    TableColumn("commit_count", ColumnType.INTEGER, "how often the node was written since its creation"),
    _COMMITTED_AT,
    _ZXID,
    LAYOUT_COLUMN,
    *LOG_COLUMNS,
    TableColumn("problem", ColumnType.STRING, "the reason why the offset is malformed; null if it is not"),
    TableColumn("read_at", ColumnType.TIMESTAMP, "when it was read, by the clock of the reader"),
    _BATCH,
)
"""The columns of a recorded commit."""

STANDING: Final[Sequence[TableColumn]] = (*_KEY, _OFFSET, _COMMITTED_AT, _ZXID, _BATCH)
"""The columns of the last recorded commit of a partition."""

READ: Final[Sequence[str]] = tuple(each.name for each in COMMITS if each.name not in {"before", "batch"})
"""The columns of a commit that the table of offsets has, too."""


# The tables of a history, and their columns with types and meanings.


class HistoryTable(StrEnum):
    """The tables that the data source reads from the transaction logs of a ZooKeeper server.

    commits    cluster, group, topic, partition, event, before, offset, commit_count, committed_at, zxid, session,
               instance, host, dialect, owner, owner_session, owned, registered, went_back, gap, problem
    ownership  cluster, group, topic, partition, event, owner, owner_session, claimed_at, claimed_zxid, changed_at,
               zxid, session, instance, host, dialect, by

    The columns have comments: `df.schema["owner"].metadata["comment"]`.
    """

    COMMITS = "commits"
    OWNERSHIP = "ownership"


_PLACE: Final = (
    _text("cluster", "the data directory with the chroot, or the name given", nullable=False),
    _text("group", "the group", nullable=False),
    _text("topic", "the topic", nullable=False),
    TableColumn("partition", ColumnType.INTEGER, "the partition", nullable=False),
)
_SESSION: Final = _text("session", "the session that made the change, in hexadecimal; null for the server")
_HOST: Final = _text("host", "the host of that instance, as far as its id or its registration shows it")
_DIALECT: Final = _text("dialect", "the client of that instance: zkgroups, gateway, scala, kazoo-go or pykafka")
_OWNER_SESSION: Final = _text("owner_session", "the session of the owner node, in hexadecimal")

HISTORY_COLUMNS: Final[Mapping[HistoryTable, Sequence[TableColumn]]] = {
    HistoryTable.COMMITS: (
        *_PLACE,
        _text("event", "created, committed or deleted", nullable=False),
        TableColumn("before", ColumnType.LONG, "the previous offset; null if there was none, or after a `gap`"),
        TableColumn("offset", ColumnType.LONG, "the next message to read; null if deleted or malformed: `problem`"),
        TableColumn("commit_count", ColumnType.INTEGER, "how often the node was written since its creation"),
        TableColumn("committed_at", ColumnType.TIMESTAMP, "when it was written, by the server's clock"),
        TableColumn("zxid", ColumnType.LONG, "the transaction", nullable=False),
        _SESSION,
        _text("instance", "the instance that the session had registered in the group then"),
        _HOST,
        _DIALECT,
        _text("owner", "the data of the owner node of the partition then"),
        _OWNER_SESSION,
        TableColumn("owned", ColumnType.BOOLEAN, "true if the session owned the partition; null if it is unknown"),
        TableColumn("registered", ColumnType.BOOLEAN, "true if the session was registered; null if it is unknown"),
        TableColumn("went_back", ColumnType.BOOLEAN, "true if the offset is lower than before", nullable=False),
        TableColumn("gap", ColumnType.BOOLEAN, "true if the logs lack the previous commit", nullable=False),
        _text("problem", "the reason why the offset is malformed; null if it is not"),
    ),
    HistoryTable.OWNERSHIP: (
        *_PLACE,
        _text("event", "claimed, changed, released, taken, closed, expired or deleted", nullable=False),
        _text("owner", "the data of the owner node; null if it is unknown"),
        _OWNER_SESSION,
        TableColumn("claimed_at", ColumnType.TIMESTAMP, "when the partition was claimed; null if it is unknown"),
        TableColumn("claimed_zxid", ColumnType.LONG, "the transaction that claimed it; null if it is unknown"),
        TableColumn("changed_at", ColumnType.TIMESTAMP, "when the event happened, by the server's clock"),
        TableColumn("zxid", ColumnType.LONG, "the transaction", nullable=False),
        _SESSION,
        _text("instance", "the instance that the owner's session had registered in the group then"),
        _HOST,
        _DIALECT,
        _text("by", "the instance of the session that made the change"),
    ),
}
