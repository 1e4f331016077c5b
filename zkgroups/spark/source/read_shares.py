"""Read a table with one task per share.

zkgroups itself reads tables with this function. The data source is for queries of users: to plan a read of it, Spark
starts two more processes of Python.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from ...snapshots.table_counts import CountSum
from ...snapshots.table_shares import TableShares
from ...tables import data_dir_reader
from ...tables.source_options import SourceOptions
from ..pyspark_internals import active_session, driver_interpreter, map_in_arrow
from .tables import SCHEMAS


def read_shares(spark: SparkSession, options: SourceOptions, counted: CountSum | None = None) -> DataFrame:
    """Return the rows of a table, in as many partitions as the options say. `counted` adds them up as they are read."""
    shares = options.parallelism or 1
    state = None if options.files is None else data_dir_reader.find_state(options.files, options.zxid)
    with driver_interpreter(spark.sparkContext), active_session(spark):
        numbers = spark.range(0, shares, 1, shares)
        return map_in_arrow(numbers, TableShares(options, shares, state, counted), SCHEMAS[options.table])
