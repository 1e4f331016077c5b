"""The tables: which columns they have, of which types, and what each means. Everything else follows from here.

Columns are nullable unless they say otherwise. Times are instants. What a znode holds that it should not is kept in
`raw`, with the reason in `problem`; the columns it would have filled are then null. What could not be read at all has a
row, too: with a `problem`, no `raw`, and without what is not known of it.
"""

from __future__ import annotations

from enum import StrEnum
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


class Table(StrEnum):
    """What there is to read."""

    OFFSETS = "offsets"
    OWNERS = "owners"
    MEMBERS = "members"


def _column(name: str, kind: DataType, about: str, *, nullable: bool = True) -> StructField:
    return StructField(name, kind, nullable, {"comment": about})


_CLUSTER: Final = _column("cluster", StringType(), "the hosts string with its chroot, or a name given", nullable=False)
_GROUP: Final = _column("group", StringType(), "the group", nullable=False)
_TOPIC: Final = _column("topic", StringType(), "the topic; null where a group's topics may not be listed")
_PARTITION: Final = _column("partition", IntegerType(), "the partition; null where they may not be listed")
_RAW: Final = _column("raw", BinaryType(), "the bytes, where they cannot be read as what they should be")
_PROBLEM: Final = _column("problem", StringType(), "what is wrong; null where all is well")
_READ_AT: Final = _column("read_at", TimestampType(), "when it was read, by the clock of the reader", nullable=False)

SCHEMAS: Final[dict[Table, StructType]] = {
    Table.OFFSETS: StructType(
        [
            _CLUSTER,
            _GROUP,
            _TOPIC,
            _PARTITION,
            _column("offset", LongType(), "the next message to read"),
            _column("commit_count", IntegerType(), "how often it was written since the node was made"),
            _column("committed_at", TimestampType(), "when it was last written, by the server's clock"),
            _column("created_at", TimestampType(), "when the node was made, by the server's clock"),
            _column("zxid", LongType(), "the transaction that wrote it last"),
            _column("owner", StringType(), "what its owner node says, the first where there are two; null without one"),
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
            _column("session", StringType(), "the session that holds it, in hexadecimal"),
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
            _column("instance", StringType(), "the registered instance; null where a group's may not be listed"),
            _column("session", StringType(), "the session it lives in, in hexadecimal"),
            _column("registered_at", TimestampType(), "when it registered, by the server's clock"),
            _column("subscription", MapType(StringType(), IntegerType(), False), "topics or expressions, with streams"),
            _column("pattern", StringType(), "how the names are meant: static, white_list or black_list"),
            _column("dialect", StringType(), "which client wrote it: zkgroups, scala, kazoo-go or pykafka"),
            _RAW,
            _PROBLEM,
            _READ_AT,
        ]
    ),
}


TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
"""What Arrow calls Spark's TIMESTAMP."""

LATEST_MS: Final = 253_402_214_399_999
"""A day before the end of the year 9999, so that it is a time in every zone. What a clock says beyond that is none."""

_IN_ARROW: Final[dict[type[DataType], Any]] = {
    StringType: pa.string(),
    BinaryType: pa.binary(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    TimestampType: TIMESTAMP,
    MapType: pa.map_(pa.string(), pa.field("value", pa.int32(), nullable=False)),
}


def arrow_schema(table: Table) -> Any:
    """The same for Arrow, exactly as Spark expects it of what it is given."""
    return pa.schema([pa.field(each.name, _IN_ARROW[type(each.dataType)], each.nullable) for each in SCHEMAS[table]])
