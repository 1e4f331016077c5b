"""`spark.readStream.format("zkgroups")`: offsets as they are committed.

    commits = spark.readStream.format("zkgroups").option("zookeeper", "zk1:2181/kafka").load()
    commits.writeStream.trigger(processingTime="10 seconds").option("checkpointLocation", ...).start(...)

A position is a transaction number (zxid). At each trigger the driver asks the server for its last zxid, over a session
that it keeps open. The workers then read all offsets in shares, and return the rows written after the position of the
last batch.

- No current offset is missed: a share is read only from a server that has applied all transactions up to the new
  position.
- An offset committed while a batch is read is in that batch. If it is still current, it is in the next batch, too, with
  the same zxid. (A reader that left it to the next batch might defer a frequently committed offset forever.) To remove
  duplicates, use `dropDuplicates` on group, topic, partition and zxid, or an idempotent sink.
- An offset overwritten between two triggers is not seen. `commit_count` shows how often that happened.
- A deleted offset has no row.
- A forbidden node has a row in each batch, with a `problem` and no `zxid`. A commit made while the node was forbidden
  does not appear when the node becomes readable, but only with the next commit. To find it, read the table again when
  the node is readable, as `spark/audit.py` does for an audit.

A batch that was planned but not finished is read again after a restart, from the same position.

If the last zxid of ZooKeeper is lower than the position, ZooKeeper was wiped or replaced (see `ensemble_position.py`).
That is an error, because positions have no meaning there. With `startOver`, the stream returns all of its offsets, then
new commits.

After ZooKeeper was restored from its own backup, start with a new checkpoint. The stream detects a restore only while
the last zxid is lower than the position. If it does not read during this time, it misses the offsets that are committed
in it, until their next commit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from ..core.ensemble_position import EnsemblePosition
from ..core.selection import Selection
from ..core.table_columns import Table
from ..exceptions import InvalidOptionError, NotConnectedError, RefusedError, UnavailableError
from ..storage.snapshot_folder import decode_position, encode_position
from ..tables.source_options import DEFAULT_PARALLELISM, SourceOptions, Starting
from ..tables.table_reader import read_selected, with_log_ends, written_after
from ..zookeeper.registry import Registry
from ..zookeeper.zookeeper_source import ensemble_position

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ModuleNotFoundError:  # before 4.2 Spark asks for the latest offset only once

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Replaces the missing base class."""


PAUSE: Final = 1.0
"""The minimum time in seconds between two polls, for a trigger without an interval."""


@dataclass(frozen=True)
class StreamShare(InputPartition):
    """The selection that one task reads: rows written after `after`, from a server that has applied `until`."""

    selection: Selection
    after: int
    until: EnsemblePosition


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reports the server's position, and reads the offsets committed since the last one."""

    def __init__(self, options: SourceOptions) -> None:
        if options.table is not Table.OFFSETS:
            reason = "only offsets can be streamed: owners and members are ephemeral"
            raise InvalidOptionError("table", str(options.table), reason)
        if options.data_dir is not None:
            raise InvalidOptionError(
                "dataDir", options.data_dir, "a data directory cannot be streamed: set zookeeper instead"
            )
        self._options = options
        self._registry: Registry | None = None  # only ever on the driver
        self._next_poll_at = 0.0
        self._end: EnsemblePosition | None = None

    # On the driver

    def initialOffset(self) -> dict[str, int]:
        """Return where a stream without a checkpoint starts."""
        now, after = self._position(), self._options.starting_zxid
        if isinstance(after, Starting):
            after = 0 if after is Starting.EARLIEST else now.zxid
        return encode_position(replace(now, zxid=after))

    def prepareForTriggerAvailableNow(self) -> None:
        """Set the current position as the end of an `availableNow` stream."""
        self._end = self._position()

    def latestOffset(self, start: dict[str, int] | None = None, limit: object = None) -> dict[str, int]:  # noqa: ARG002
        """Return the server's position. Each new or ended session advances it, too.

        Spark up to 4.1 does not pass `start`.
        """
        if self._end is None:
            time.sleep(max(0.0, self._next_poll_at - time.monotonic()))
            self._next_poll_at = time.monotonic() + PAUSE
        now = self._end or self._position()
        if start is not None:
            self._check_same_zookeeper(decode_position(start), now)
        return encode_position(now)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Plan one share per task; none if the batch was planned for a ZooKeeper that was replaced."""
        begin, until = decode_position(start), decode_position(end)
        self._check_same_zookeeper(begin, until)
        if until == begin or not self._check_same_zookeeper(until, self._position()):
            return []
        options, after = self._options, begin.zxid if begin.may_precede(until) else 0
        shares = options.parallelism or DEFAULT_PARALLELISM
        selections = (Selection(options.groups, options.topics, number, shares) for number in range(shares))
        return [StreamShare(selection, after, until) for selection in selections]

    def stop(self) -> None:
        """Close the session."""
        registry, self._registry = self._registry, None
        if registry is not None:
            registry.close()

    def _check_same_zookeeper(self, before: EnsemblePosition, now: EnsemblePosition) -> bool:
        """Return whether both positions are of the same ZooKeeper. Without `startOver`, raise RefusedError if not."""
        if not (same := before.may_precede(now)) and not self._options.start_over:
            raise RefusedError(
                f"{self._options.zookeeper} was replaced or wiped: this stream has read up to zxid {before.zxid:#x}, "
                f"but the server is at {now.zxid:#x}; set startOver to read all of its offsets"
            )
        return same

    def _position(self) -> EnsemblePosition:
        try:
            return self._ask_position()
        except UnavailableError:
            self.stop()  # a wiped server rejects sessions that have seen a later zxid
            return self._ask_position()

    def _ask_position(self) -> EnsemblePosition:
        if self._registry is None:
            self._registry = self._options.connect()
        return ensemble_position(self._registry)

    # On a worker

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read one share as Arrow batches."""
        assert isinstance(partition, StreamShare)
        with closing(self._options.connect()) as registry:
            if (now := ensemble_position(registry)).zxid < partition.until.zxid:
                raise NotConnectedError(
                    f"a server of {self._options.zookeeper} is at zxid {now.zxid:#x}, but the batch needs "
                    f"{partition.until.zxid:#x}: "
                    "start the stream again when the server has caught up"
                )
            read = read_selected(registry, self._options, partition.selection)
            new = (rows for batch in read if (rows := written_after(batch, partition.after)).num_rows)
            yield from with_log_ends(new, self._options)
