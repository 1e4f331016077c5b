"""The columns of the tables offsets, owners and members, with their types and meanings.

Columns are nullable unless marked otherwise. A malformed node has its bytes in `raw` and the reason in `problem`; the
columns that it would have filled are null. A forbidden node has a `problem` but no `raw`.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ...core.tables import Table


def _column(name: str, kind: DataType, about: str, *, nullable: bool = True) -> StructField:
    return StructField(name, kind, nullable, {"comment": about})


_CLUSTER: Final = _column(
    "cluster", StringType(), "the hosts string with its chroot, or the name given", nullable=False
)
_GROUP: Final = _column("group", StringType(), "the group", nullable=False)
_TOPIC: Final = _column("topic", StringType(), "the topic; null where a group's topics may not be listed")
_PARTITION: Final = _column("partition", IntegerType(), "the partition; null where they may not be listed")
_RAW: Final = _column("raw", BinaryType(), "the bytes of a malformed node")
_PROBLEM: Final = _column("problem", StringType(), "the reason why the node cannot be read; null if it can")
_READ_AT: Final = _column("read_at", TimestampType(), "when it was read, by the clock of the reader", nullable=False)

SCHEMAS: Final[dict[Table, StructType]] = {
    Table.OFFSETS: StructType(
        [
            _CLUSTER,
            _GROUP,
            _TOPIC,
            _PARTITION,
            _column("offset", LongType(), "the next message to read"),
            _column("commit_count", IntegerType(), "how often the node was written since its creation"),
            _column("committed_at", TimestampType(), "when it was last written, by the server's clock"),
            _column("created_at", TimestampType(), "when the node was created, by the server's clock"),
            _column("zxid", LongType(), "the transaction that wrote it last"),
            _column(
                "owner", StringType(), "the data of the owner node (the first, if there are two); null without one"
            ),
            _RAW,
            _PROBLEM,
            _READ_AT,
        ]
    ),
    Table.OWNERS: StructType(
        [
            _CLUSTER,
            _GROUP,
            _TOPIC,
            _PARTITION,
            _column("owner", StringType(), "the instance, or an instance and the number of its stream"),
            _column("session", StringType(), "the session that owns it, in hexadecimal"),
            _column("claimed_at", TimestampType(), "when the partition was claimed, by the server's clock"),
            _column("zxid", LongType(), "the transaction that claimed it"),
            _RAW,
            _PROBLEM,
            _READ_AT,
        ]
    ),
    Table.MEMBERS: StructType(
        [
            _CLUSTER,
            _GROUP,
            _column("instance", StringType(), "the registered instance; null where they may not be listed"),
            _column("session", StringType(), "the session of the registration, in hexadecimal"),
            _column("registered_at", TimestampType(), "when it registered, by the server's clock"),
            _column(
                "subscription",
                MapType(StringType(), IntegerType(), False),
                "topics or expressions, with the number of streams",
            ),
            _column("pattern", StringType(), "the kind of subscription: static, white_list or black_list"),
            _column("dialect", StringType(), "the client that wrote it: zkgroups, gateway, scala, kazoo-go or pykafka"),
            _column("client_id", StringType(), "the client id of a Kafka client that joined through a gateway"),
            _column("client_host", StringType(), "the host of such a client"),
            _RAW,
            _PROBLEM,
            _READ_AT,
        ]
    ),
}


TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
"""Arrow's type for Spark's TIMESTAMP."""

_IN_ARROW: Final[dict[type[DataType], Any]] = {
    StringType: pa.string(),
    BinaryType: pa.binary(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    TimestampType: TIMESTAMP,
    MapType: pa.map_(pa.string(), pa.field("value", pa.int32(), nullable=False)),
}


def arrow_schema(table: Table) -> Any:
    """Return the Arrow schema that Spark expects for the table."""
    return pa.schema([pa.field(each.name, _IN_ARROW[type(each.dataType)], each.nullable) for each in SCHEMAS[table]])
