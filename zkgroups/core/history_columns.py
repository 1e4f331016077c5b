"""The tables of a history, and their columns with types and meanings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

from .table_columns import ColumnType, TableColumn


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


def _text(name: str, about: str, *, nullable: bool = True) -> TableColumn:
    return TableColumn(name, ColumnType.STRING, about, nullable)


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
