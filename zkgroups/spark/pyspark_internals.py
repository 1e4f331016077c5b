"""Everything that relies on undocumented parts of pyspark, py4j and Spark, and on the Java classes behind them.

`tests/spark/test_pyspark_assumptions.py` checks each assumption. If a new pyspark breaks one, adapt this module before
raising the upper bound of the version in `setup.cfg`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

from py4j.clientserver import ClientServer
from py4j.java_gateway import JavaClass
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

# Java and the context


def launch_java(conf: SparkConf, log: Any) -> Any:
    """Start Java, which writes to `log`, and return pyspark's connection to it.

    Java starts Python to plan reads, and finds the programs beside this interpreter first. So the name `python3.11` as
    `spark.pyspark.python` means this interpreter on the driver, and another one on the workers.
    """
    path = os.environ.get("PATH", os.defpath)
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{path}"
    try:
        return launch_gateway(conf, {"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
    finally:
        os.environ["PATH"] = path


def java_process(gateway: Any) -> subprocess.Popen[bytes] | None:
    """Return the Java process, or None if spark-submit started it."""
    return cast("subprocess.Popen[bytes] | None", gateway.proc)


def forget_java() -> None:
    """Reset pyspark's global state without a call to Java, which might not answer any more."""
    if (context := SparkContext._active_spark_context) is not None:
        context._jsc = None
        context.stop()
    SparkContext._gateway = SparkContext._jvm = SparkSession._instantiatedSession = None


def hide_lost_java(context: SparkContext) -> None:
    """Let pyspark's accumulator server print no traceback if Java is killed."""
    context._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]


def is_stopped(spark: SparkSession) -> bool:
    """Return whether the context of a session was stopped."""
    return spark.sparkContext._jsc is None


def threads_are_pinned() -> bool:
    """Return whether each Python thread has a Java thread of its own. False with PYSPARK_PIN_THREAD=false."""
    return isinstance(SparkContext._gateway, ClientServer)


# Sessions and functions


@contextmanager
def active_session(spark: SparkSession) -> Iterator[None]:
    """Make this the active session of the thread for a block. Spark looks up data sources in the active session."""
    sessions = SparkSession._get_j_spark_session_class(cast(Any, spark.sparkContext._jvm))
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


_INTERPRETER_LOCK: Final = threading.Lock()
"""Held while the interpreter of the whole context is replaced."""


@contextmanager
def driver_interpreter(context: SparkContext) -> Iterator[None]:
    """Use the driver's interpreter for everything registered in the block, unless the user chose another.

    Only spark-submit obeys `spark.pyspark.python`. A context that Python has started ignores it.
    """
    with _INTERPRETER_LOCK:
        usual = context.pythonExec
        # `getConf` copies all settings, each with a call to Java.
        chosen = context._conf.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
        context.pythonExec = chosen or sys.executable
        try:
            yield
        finally:
            context.pythonExec = usual


def map_in_arrow(rows: DataFrame, function: Callable[[Iterator[Any]], Iterator[Any]], schema: StructType) -> DataFrame:
    """Do the work of `DataFrame.mapInArrow`, which up to Spark 4.3 needs pandas without using it."""
    made = UserDefinedFunction(function, schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column: Any = made(*[rows[name] for name in rows.columns])
    return DataFrame(rows._jdf.mapInArrow(column._jc, False, None), rows.sparkSession)


def arrow_schema(schema: StructType) -> Any:
    """Return a schema as Arrow's. Times are in UTC."""
    return to_arrow_schema(schema, timezone="UTC")


# Files


def literal_paths(reader: DataFrameReader) -> DataFrameReader:
    """Let a reader take paths literally: a folder may be named `[1]`."""
    return reader.option("__globPaths__", "false")


def hadoop_path(spark: SparkSession, path: str) -> Any:
    return _java_class(spark, "org.apache.hadoop.fs.Path")(path)


def file_system(spark: SparkSession, path: Any) -> Any:
    return path.getFileSystem(_hadoop_configuration(spark))


def read_stream(spark: SparkSession, stream: Any) -> str:
    """Read the rest of a Java stream as UTF-8."""
    return str(_java_class(spark, "org.apache.commons.io.IOUtils").toString(stream, "UTF-8"))


def row_counter(spark: SparkSession) -> Callable[[Any], int]:
    """Return a function from the status of a Parquet file to the number of rows in its footer."""
    open_reader = _java_class(spark, "org.apache.parquet.hadoop.ParquetFileReader").open
    from_status = _java_class(spark, "org.apache.parquet.hadoop.util.HadoopInputFile").fromStatus
    configuration = _hadoop_configuration(spark)

    def count(status: Any) -> int:
        reader = open_reader(from_status(status, configuration))
        try:
            return int(reader.getRecordCount())
        finally:
            reader.close()

    return count


def _java_class(spark: SparkSession, name: str) -> Any:
    """Return a class by its whole name. With `jvm.org.apache...`, each part of the name is a call to Java."""
    jvm: Any = spark.sparkContext._jvm
    return JavaClass(name, jvm._gateway_client)


def _hadoop_configuration(spark: SparkSession) -> Any:
    return spark._jsparkSession.sessionState().newHadoopConf()
