"""A folder on any Hadoop file system, whose subfolders Spark reads."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from ...storage.atomic_folder import AtomicFolder
from ..errors import translated
from ..pyspark_internals import literal_paths
from .hadoop_files import HadoopFiles


class SparkFolder(AtomicFolder):
    """A folder; all names are relative to it."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        self._spark = spark
        super().__init__(HadoopFiles(spark, folder), folder)

    def read_folders(self, folders: Sequence[Sequence[str]], schema: StructType, cure: str) -> DataFrame:
        """Check the files of complete folders, and read their rows."""
        if not folders:
            return self._spark.createDataFrame([], schema)
        for names in folders:
            self.check_files(*names, cure=cure)
        with translated(f"{self} cannot be read"):  # with a schema, because inferring one needs a job
            reader = literal_paths(self._spark.read.schema(schema))
            return reader.parquet(*(self.path(*names) for names in folders))
