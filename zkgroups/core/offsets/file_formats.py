"""The text formats in which offsets are exported and imported.

    json       one document: {"schema": 1, "offsets": [{"group": "g", "topic": "t", "partition": 0, "offset": 5}]}
    jsonl      one such object per line
    csv        group,topic,partition,offset, with a header line; a leading apostrophe keeps a spreadsheet from taking
               a name for a formula (`csv_cells.py`)
    kafka-csv  group,topic,partition,offset without a header or apostrophes, for kafka-consumer-groups.sh
               --reset-offsets --from-file; also topic,partition,offset, if the group is given elsewhere
    path       /consumers/g/offsets/t/0:5, as written by Kafka's ExportZkOffsets
    spark      the offsets of one group as Spark's option startingOffsets: {"t": {"0": 5}}

`file_writer.py` and `file_reader.py` keep one rule: every name that ZooKeeper allows survives a round trip. In json and
jsonl, an offset may be null if none is committed or if the node is malformed. The other formats cannot express this.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ..znodes.topic_partition import TopicPartition
from ..znodes.values import CommittedOffset

SCHEMA: Final = 1
"""The version of the JSON formats."""

FIELDS: Final = ("group", "topic", "partition", "offset")


class FileFormat(StrEnum):
    """The formats, as described at the top of this file."""

    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"
    KAFKA_CSV = "kafka-csv"
    PATH = "path"
    SPARK = "spark"


@dataclass(frozen=True, slots=True)
class OffsetRecord:
    """One offset in a file. `group` is None in a format without groups."""

    group: str | None
    at: TopicPartition
    offset: int | None
    note: str | None = None
    """A remark for human readers. Only JSON has it."""

    @classmethod
    def of(cls, committed: CommittedOffset) -> OffsetRecord:
        """Return the record of a committed offset."""
        return cls(committed.group, committed.at, committed.offset)
