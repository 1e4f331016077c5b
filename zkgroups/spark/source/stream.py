"""`spark.readStream.format("zkgroups")`: offsets as they are committed.

    commits = spark.readStream.format("zkgroups").option("zookeeper", "zk1:2181/kafka").load()
    commits.writeStream.trigger(processingTime="10 seconds").option("checkpointLocation", ...).start(...)

A position is the number of a transaction, the zxid. At each trigger the driver asks the server how far it is, by a
session that it keeps, and all offsets are read at once, in shares, of which those rows are passed on that were written
after the position of the last batch. So:

- Nothing that stands is missed: each share is read by a server that has done all transactions up to the new position.
- What is committed while a batch is read comes with it, and once more with the next one if it still stands then, with
  the same zxid. To leave that for the next batch would be to wait for good for an offset that is committed all the
  time. `dropDuplicates` on group, topic, partition and zxid, or a sink that writes over what it has, takes it out.
- What was overwritten between two triggers is not seen: `commit_count` tells how often that was.
- An offset that is deleted makes no row.
- What may not be read has a row in each batch, with a `problem` and no `zxid`. Nobody knows when it was written: what
  was committed meanwhile, before the position, does not come when it may be read again, but only with the next commit.
  Whoever needs it reads the table then, as `spark/audit/ledger.py` does for an audit.

A batch that was planned and not finished is read again after a restart, from the same position.

A ZooKeeper that has done fewer transactions than we have seen was wiped, or is another; see `position.py`. That is an
error, because positions mean nothing there. With `beginAnew` all of its offsets come, and then what is committed.

One that was put back from a backup of itself is found out only while it has done fewer transactions than we have seen.
Once it has gone past that, it cannot be told from the one that was followed, and what was committed on the way there is
missed until it is committed again. Where a backup was put back, begin with a new checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from ...exceptions import InvalidOptionError, NotConnectedError, RefusedError, UnavailableError
from ...zookeeper.reading.position import Position, position
from ...zookeeper.registry import Registry
from .options import DEFAULT_PARALLELISM, SourceOptions, Starting
from .selection import Selection
from .table_reader import batches_of
from .tables import Table

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ModuleNotFoundError:  # before 4.2 Spark itself asks once, and takes that answer for the last

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Nothing to support."""


PAUSE: Final = 1.0
"""In seconds: a trigger that names no time asks again at once, and the server has other things to do."""


@dataclass(frozen=True)
class StreamShare(InputPartition):
    """What one task reads: its selection, as far as it was written after that transaction, where `until` is done."""

    selection: Selection
    after: int
    until: Position


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Says how far the server is, and reads in shares what was committed since."""

    def __init__(self, options: SourceOptions) -> None:
        if options.table is not Table.OFFSETS:
            reason = "only offsets can be read as a stream: others end with their session, and leave nothing"
            raise InvalidOptionError("table", str(options.table), reason)
        if options.data_dir is not None:
            raise InvalidOptionError("dataDir", options.data_dir, "nothing happens there that a stream could follow")
        self._options = options
        self._registry: Registry | None = None  # only ever on the driver
        self._not_before = 0.0
        self._target: Position | None = None

    # On the driver

    def initialOffset(self) -> dict[str, int]:
        """Where a stream begins that has no checkpoint."""
        now, after = self._now(), self._options.starting_zxid
        if isinstance(after, Starting):
            after = 0 if after is Starting.EARLIEST else now.zxid
        return asdict(replace(now, zxid=after))

    def prepareForTriggerAvailableNow(self) -> None:
        """Whoever wants what there is now, and no more, reads as far as this."""
        self._target = self._now()

    def latestOffset(self, start: dict[str, int] | None = None, limit: object = None) -> dict[str, int]:  # noqa: ARG002
        """How far the server is; where a session of anybody began or ended meanwhile, that is further than before.

        Spark up to 4.1 does not say where the batch begins.
        """
        if self._target is None:
            time.sleep(max(0.0, self._not_before - time.monotonic()))
            self._not_before = time.monotonic() + PAUSE
        now = self._target or self._now()
        if start is not None:
            self._check(Position(**start), now)
        return asdict(now)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """One share for each task; none of what was planned in a ZooKeeper that is no more."""
        begin, until = Position(**start), Position(**end)
        self._check(begin, until)
        if until == begin or not self._check(until, self._now()):
            return []
        options, after = self._options, begin.zxid if begin.is_of(until) else 0
        shares = options.parallelism or DEFAULT_PARALLELISM
        selections = (Selection(options.groups, options.topics, number, shares) for number in range(shares))
        return [StreamShare(selection, after, until) for selection in selections]

    def stop(self) -> None:
        """Let go of the session."""
        registry, self._registry = self._registry, None
        if registry is not None:
            registry.close()

    def _check(self, before: Position, now: Position) -> bool:
        """Whether both are of the same ZooKeeper, where that need not be."""
        if not (same := before.is_of(now)) and not self._options.begin_anew:
            raise RefusedError(
                f"{self._options.zookeeper} is not the ZooKeeper that this stream has followed up to zxid "
                f"{before.zxid:#x}, or it was wiped: it is at {now.zxid:#x}; to read all that is there, begin anew"
            )
        return same

    def _now(self) -> Position:
        try:
            return self._ask()
        except UnavailableError:
            self.stop()  # a server that was wiped takes no session that has seen more than it has
            return self._ask()

    def _ask(self) -> Position:
        if self._registry is None:
            self._registry = self._options.connect()
        return position(self._registry)

    # On a worker

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one share, as Arrow batches."""
        assert isinstance(partition, StreamShare)
        with closing(self._options.connect()) as registry:
            if (now := position(registry)).zxid < partition.until.zxid:
                words = f"the server is at zxid {now.zxid:#x}, and others were at {partition.until.zxid:#x} before"
                raise NotConnectedError(words)
            for batch in batches_of(registry, self._options, partition.selection):
                later = pc.greater(batch.column("zxid"), partition.after)
                rows = batch.filter(pc.fill_null(later, True))  # what may not be read has no zxid
                if rows.num_rows:
                    yield rows
