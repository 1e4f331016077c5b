"""`zkgroups snapshots`: what is said before Spark is started.

With Spark, the commands are in tests/spark/test_history_list.py and test_history_verify.py, where one is running.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .running import run


@pytest.mark.parametrize("command", ["list", "verify"])
def test_where_spark_is_not_installed_it_says_what_to_type(tmp_path: Path, command: str) -> None:
    (tmp_path / "pyspark.py").write_text("raise ModuleNotFoundError('No module', name='pyspark')")
    ended = run("snapshots", command, "d", env={"PYTHONPATH": str(tmp_path)})
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == "zkgroups: this needs Spark: pip install 'zkgroups[spark]'\n"


@pytest.mark.parametrize("arguments", [("list",), ("verify",), ("list", "d", "--at", "latest")], ids=" ".join)
def test_what_is_not_said_clearly_is_wrong_usage(arguments: tuple[str, ...]) -> None:
    ended = run("snapshots", *arguments, env={"JAVA_HOME": "", "PATH": "/nowhere"})
    assert (ended.code, ended.out) == (2, "")
