"""What zkgroups assumes about undocumented parts of pyspark and Spark, one test for each assumption.

If a new version of pyspark breaks one, the test names it, and `pyspark_internals.py` must be adapted before the upper
bound of the version in `setup.cfg` is raised.
"""

from __future__ import annotations

import ast
import io
import socketserver
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import Popen
from typing import Any

import pyarrow as pa
import pytest
from py4j.clientserver import ClientServer
from pyarrow import parquet
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from zkgroups.core.table_columns import COLUMNS, Table
from zkgroups.core.times import LATEST_MS
from zkgroups.spark import pyspark_internals as internals
from zkgroups.spark.data_source import SCHEMAS
from zkgroups.tables.arrow import arrow_schema

from ..test_architecture import PYSPARK_INTERNALS, ROOT, pyspark_internal

Check = Callable[[Any, Path, pytest.MonkeyPatch], None]
ASSUMPTIONS: dict[str, Check] = {}
CHECKED_NAMES: set[str] = set()


def assumption(text: str, *names: str) -> Callable[[Check], Check]:
    """Register a check of an assumption about these names."""

    def register(check: Check) -> Check:
        assert text not in ASSUMPTIONS
        ASSUMPTIONS[text] = check
        CHECKED_NAMES.update(names)
        return check

    return register


# Java and the context


@assumption("launch_gateway returns a gateway with the process of Java, and writes Java's output to `stdout`")
def _(spark: SparkSession, _folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyspark.java_gateway

    assert isinstance(internals.java_process(SparkContext._gateway), Popen)

    class Started(Exception):
        pass

    def started(_command: Any, **options: Any) -> None:
        raise Started(options["stdout"], options["stderr"])

    monkeypatch.setattr(pyspark.java_gateway, "Popen", started)
    log = io.BytesIO()
    with pytest.raises(Started) as caught:
        internals.launch_java(spark.sparkContext.getConf(), log)
    assert caught.value.args == (log, log)


@assumption(
    "a context, its gateway and its JVM are stored on the class of contexts",
    "_active_spark_context",
    "_gateway",
    "_jvm",
)
def _(spark: Any, _folder: Path, _monkeypatch: pytest.MonkeyPatch) -> None:
    assert SparkContext._active_spark_context is spark.sparkContext
    assert SparkContext._gateway is spark.sparkContext._gateway
    assert SparkContext._jvm is spark.sparkContext._jvm is SparkContext._gateway.jvm


@assumption("the last session is stored on the class of sessions", "_instantiatedSession")
def _(spark: Any, _folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkSession, "_activeSession", None)  # restored at the end
    monkeypatch.setattr(SparkSession, "_instantiatedSession", None)
    assert SparkSession(spark.sparkContext) is SparkSession._instantiatedSession


@assumption("a context without a Java context is stopped without a call to Java", "_jsc")
def _(spark: Any, _folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not internals.is_stopped(spark)
    for kind, name in (
        (SparkContext, "_active_spark_context"),
        (SparkContext, "_gateway"),
        (SparkContext, "_jvm"),
        (SparkSession, "_instantiatedSession"),
    ):
        monkeypatch.setattr(kind, name, None)  # restored at the end
    context = SparkContext._active_spark_context = object.__new__(SparkContext)
    internals.forget_java()
    assert SparkContext._active_spark_context is None
    assert context._jsc is None


@assumption("the accumulator server reports errors by handle_error", "_accumulatorServer")
def _(spark: Any, _folder: Path, _monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(spark.sparkContext._accumulatorServer, socketserver.BaseServer)
    assert callable(spark.sparkContext._accumulatorServer.handle_error)


@assumption("with pinned threads, which are the default, the gateway is a ClientServer")
def _(_spark: Any, _folder: Path, _monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(SparkContext._gateway, ClientServer)
    assert internals.threads_are_pinned()


# Sessions and functions


@assumption(
    "Java's class of sessions has the active session of each thread", "_get_j_spark_session_class", "_jsparkSession"
)
def _(spark: Any, _folder: Path, _monkeypatch: pytest.MonkeyPatch) -> None:
    sessions, other = SparkSession._get_j_spark_session_class(SparkContext._jvm), spark.newSession()
    with internals.active_session(spark):
        with internals.active_session(other):
            assert sessions.active().equals(other._jsparkSession)
        assert sessions.active().equals(spark._jsparkSession)


@assumption(
    "mapInArrow of Java's rows runs a function in the interpreter of its creation", "_jdf", "_jc", "pythonExec", "_conf"
)
def _(spark: Any, _folder: Path, _monkeypatch: pytest.MonkeyPatch) -> None:
    def interpreter(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"python": [sys.executable] * batch.num_rows})

    with internals.driver_interpreter(spark.sparkContext):
        rows = internals.map_in_arrow(spark.range(1), interpreter, StructType([StructField("python", StringType())]))
    assert spark.sparkContext.pythonExec != sys.executable
    assert [row.python for row in rows.collect()] == [sys.executable]


@assumption("to_arrow_schema keeps names and types, and sets the time zone")
def _(_spark: Any, _folder: Path, _monkeypatch: pytest.MonkeyPatch) -> None:
    schema = StructType([StructField("group", StringType()), StructField("at", TimestampType())])
    assert internals.arrow_schema(schema) == pa.schema({"group": pa.string(), "at": pa.timestamp("us", tz="UTC")})


# Files


@assumption("the option __globPaths__ makes a reader take paths literally", "__globPaths__")
def _(spark: Any, folder: Path, _monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("[1]", "1"):
        (folder / name).mkdir()
        (folder / name / "text").write_text(f"the folder {name}")
    rows = internals.literal_paths(spark.read).text(str(folder / "[1]"))
    assert [row.value for row in rows.collect()] == ["the folder [1]"]


@assumption("the JVM of a session has Hadoop's paths, file systems and text of streams", "_gateway_client")
def _(spark: Any, folder: Path, _monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "text").write_text("grüß Gott")
    path = internals.hadoop_path(spark, str(folder / "text"))
    assert path.toString() == str(folder / "text")
    files = internals.file_system(spark, path)
    assert internals.read_stream(spark, files.open(path)) == "grüß Gott"


@assumption("the JVM of a session has Parquet's reader of footers")
def _(spark: Any, folder: Path, _monkeypatch: pytest.MonkeyPatch) -> None:
    parquet.write_table(pa.table({"offset": [1, 2, 3]}), folder / "rows.parquet")
    path = internals.hadoop_path(spark, str(folder / "rows.parquet"))
    status = internals.file_system(spark, path).getFileStatus(path)
    assert internals.row_counter(spark)(status) == 3


@pytest.mark.parametrize("text", ASSUMPTIONS)
def test_pyspark_is_as_assumed(text: str, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ASSUMPTIONS[text](spark, tmp_path, monkeypatch)


def test_every_internal_name_that_is_used_is_checked() -> None:
    tree = ast.parse((ROOT / PYSPARK_INTERNALS).read_text())
    used = {name for node in ast.walk(tree) if (name := pyspark_internal(node)) is not None}
    assert used == CHECKED_NAMES


def test_arrow_schemas_equal_the_spark_schemas() -> None:
    """Spark compares the schemas, and refuses different ones."""
    for table in Table:
        assert arrow_schema(COLUMNS[table]).equals(to_arrow_schema(SCHEMAS[table], timezone="UTC"))


def test_the_latest_time_is_valid_in_every_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark passes times to Python in the local zone, and Python supports no year 10000."""
    for zone in ("Pacific/Kiritimati", "UTC", "Pacific/Niue"):
        with monkeypatch.context() as patch:
            patch.setenv("TZ", zone)
            time.tzset()
            assert TimestampType().fromInternal(LATEST_MS * 1000).year == 9999
    time.tzset()
