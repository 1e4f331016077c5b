"""The log start and log end of each partition in the table of offsets, from the brokers.

Offsets are read before log ends, so that no lag is negative. The log ends of a partition may be a little later in one
row than in another. If the brokers do not answer, the log ends are null: the offsets are more important.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ..core.kafka_values import OffsetRange
from ..core.tables import Table
from ..core.znodes.topic_partition import TopicPartition
from ..exceptions import InvalidInputError, ZkgroupsException
from .source_options import SourceOptions

if TYPE_CHECKING:
    from ..kafka import Brokers

log = logging.getLogger("zkgroups.spark")

START: Final = "log_start"
END: Final = "log_end"

_ROWS: Final = 100_000
"""The approximate number of rows for which to ask the brokers at once."""

_PARTITIONS: Final = 2**31
"""More than there are partitions in a topic."""


def check_brokers(options: SourceOptions) -> str | None:
    """Return why there are no log ends; None if the brokers answer, or if none are given.

    Raise InvalidInputError for options that cannot be used.
    """
    if options.brokers is None:
        return None
    try:
        with options.brokers.connect() as brokers:
            brokers.cluster_id()
    except InvalidInputError:
        raise
    except ZkgroupsException as error:
        return str(error)
    return None


def lags(offsets: Any, ends: Any) -> Any:
    """Return the lag of each offset, null if it is unknown: `core/offsets/lag.py` has the rule."""
    return pc.if_else(pc.less_equal(offsets, ends), pc.subtract(ends, offsets), pa.scalar(None, pa.int64()))


def with_log_ends(batches: Iterator[Any], options: SourceOptions) -> Iterator[Any]:
    """Fill in the log ends of batches of offsets, if the options have brokers. Other batches are not changed."""
    if options.brokers is None or options.table is not Table.OFFSETS:
        yield from batches
        return
    with options.brokers.connect() as brokers:
        reader = _LogReader(brokers)
        for together in _collected(batches):
            yield from reader.filled(together)


def _collected(batches: Iterable[Any]) -> Iterator[list[Any]]:
    together: list[Any] = []
    for batch in batches:
        together.append(batch)
        if sum(map(len, together)) >= _ROWS:
            yield together
            together = []
    if together:
        yield together


class _LogReader:
    """Asks the brokers until they fail once, because each failure takes as long as the timeout."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._has_failed = False

    def filled(self, batches: list[Any]) -> Iterator[Any]:
        """Yield batches that were read before, with their log ends."""
        keys, places = _places(pa.Table.from_batches(batches).select(["topic", "partition"]))
        distinct = pc.unique(keys).drop_null()
        ranges = self._ranges(list(map(places, distinct.to_pylist())))
        rows = pc.index_in(keys, value_set=distinct)
        starts, ends = (
            pa.array([getattr(each, name, None) for each in ranges], pa.int64()).take(rows) for name in ("start", "end")
        )
        done = 0
        for batch in batches:
            for name, column in ((START, starts), (END, ends)):
                index = batch.schema.get_field_index(name)
                batch = batch.set_column(index, batch.schema.field(index), column.slice(done, len(batch)))
            done += len(batch)
            yield batch

    def _ranges(self, places: list[TopicPartition]) -> list[OffsetRange | None]:
        found: Mapping[TopicPartition, OffsetRange | None] = {}
        if not self._has_failed:
            try:
                found = self._brokers.ranges(places)
            except ZkgroupsException as error:
                self._has_failed = True
                log.warning("log ends are unknown: %s", error)
        return [found.get(at) for at in places]


def _places(rows: Any) -> tuple[Any, Callable[[int], TopicPartition]]:
    """Return a number for the partition of each row, null if it has none, and the function from number to partition."""
    topics = rows.column("topic").combine_chunks().dictionary_encode()
    names = topics.dictionary.to_pylist()
    numbers = pc.multiply(topics.indices.cast(pa.int64()), _PARTITIONS)
    keys = pc.add(numbers, rows.column("partition").combine_chunks().cast(pa.int64()))
    return keys, lambda key: TopicPartition(names[key // _PARTITIONS], key % _PARTITIONS)
