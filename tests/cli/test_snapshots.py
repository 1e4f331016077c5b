"""`zkgroups snapshots`: errors before Spark starts, and the engine of this process.

For tests with Spark see tests/spark/test_history_list.py and test_history_verify.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .running import run


@pytest.mark.parametrize(
    "command", [("list", "s3a://bucket/d"), ("list", "d", "--master", "local[2]"), ("verify", "d")]
)
def test_a_missing_spark_is_reported_with_the_command_to_install_it(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "pyspark.py").write_text("raise ModuleNotFoundError('No module', name='pyspark')")
    ended = run("snapshots", *command, env={"PYTHONPATH": str(tmp_path)})
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == "zkgroups: this needs Spark: pip install 'zkgroups[spark]'\n"


@pytest.mark.parametrize("arguments", [("list",), ("verify",), ("list", "d", "--at", "latest")], ids=" ".join)
def test_ambiguous_arguments_are_wrong_usage(arguments: tuple[str, ...]) -> None:
    ended = run("snapshots", *arguments, env={"JAVA_HOME": "", "PATH": "/nowhere"})
    assert (ended.code, ended.out) == (2, "")


@pytest.mark.parametrize("command", ["diff", "verify", "list"])
def test_the_local_engine_refuses_other_file_systems_and_settings_of_spark(command: str) -> None:
    local = ("--engine", "local")
    for arguments, said in (
        (("s3a://bucket/d", *local), "use --engine spark for s3a://bucket/d"),
        (("d", "--conf", "spark.x=1", *local), "--master and --conf need --engine spark"),
    ):
        ended = run("snapshots", command, *arguments)
        assert (ended.code, ended.out) == (2, "")
        assert said in ended.err
