"""Read the tables of a history: each task reads some transaction logs, and logs before them that lead to their state.

Transactions that are missing between others are an error, which names them. So a table never misses them silently. If
only the beginning of the logs is missing, because older logs were deleted, that is logged as a warning, unless the
option `since` asks for earlier transactions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

from ...core.history.events import Commit, HistoryEvent, OwnerChange
from ...core.history_columns import HISTORY_COLUMNS
from ...datadir.history.gaps import GapReason, LogGap
from ...datadir.history.parts import LogPart, history_files, log_parts, logs_of_period
from ...datadir.history.reader import HistoryReader
from ...exceptions import DamagedDataError
from ...tables.history_batches import history_batches
from ...tables.history_options import HistoryOptions
from ...tables.source_options import DEFAULT_PARALLELISM
from .tables import spark_schema

log = logging.getLogger("zkgroups.spark")

HISTORY_SCHEMAS: Final = {table: spark_schema(columns) for table, columns in HISTORY_COLUMNS.items()}


@dataclass(frozen=True)
class LogShare(InputPartition):
    """The logs that one task reads."""

    part: LogPart


class HistoryTableReader(DataSourceReader):
    """Reads a table of a history in parts."""

    def __init__(self, options: HistoryOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Divide the logs of the period, on the driver."""
        options = self._options
        logs = logs_of_period(history_files(options.files).logs, options.period)
        return [LogShare(part) for part in log_parts(logs, options.parallelism or DEFAULT_PARALLELISM)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read some logs as Arrow batches, on a worker."""
        assert isinstance(partition, LogShare)
        return history_batches(self._options.table, self._events(partition.part), self._options.shown_cluster)

    def _events(self, part: LogPart) -> Iterator[HistoryEvent]:
        options, selection = self._options, self._options.selection
        reader = HistoryReader(options.files, has_group=selection.has_group, period=options.period, part=part)
        for item in reader.items():
            if isinstance(item, LogGap):
                self._check(item)
            elif not isinstance(item, Commit | OwnerChange) or selection.has_topic(item.group, item.topic):
                yield item

    def _check(self, gap: LogGap) -> None:
        if gap.reason is GapReason.PURGED and self._options.since is None:
            log.warning("%s", gap.text)
            return
        cures = [] if gap.before is None else [f"set since to 0x{gap.before:x} or later"]
        cures += [f"set until to 0x{gap.after:x}"] if gap.after else []
        raise DamagedDataError(self._options.data_dir, ": ".join([gap.text, *([" or ".join(cures)] if cures else [])]))
