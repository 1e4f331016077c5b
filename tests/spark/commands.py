"""Run `zkgroups` in this process with the Spark session of the tests, or without any."""

from __future__ import annotations

import io
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ..cli.running import Argument, Ended

Command = Callable[..., Ended]


@contextmanager
def command_on(spark: SparkSession | None, hosts: str | None, *, together: bool = False) -> Iterator[Command]:
    """Run `zkgroups` with ZooKeeper named in the environment; with `together`, stdout also has what stderr prints.

    Without a session, a command that starts Spark fails.
    """
    from zkgroups_cli.shared.engine_options import SparkOptions

    def refused(*_arguments: object) -> None:
        raise AssertionError("it starts Spark")

    @contextmanager
    def kept(*_arguments: object, **_options: object) -> Iterator[SparkSession | None]:
        yield spark

    def run(*arguments: Argument, **env: str) -> Ended:
        where = {} if hosts is None else {"ZKGROUPS_ZOOKEEPER": hosts}
        return Ended(**one_run(list(map(str, arguments)), {"ZKGROUPS_CONFIG": os.devnull} | where | env, together))

    with pytest.MonkeyPatch.context() as patch:
        if spark is None:
            patch.setattr(SparkOptions, "session", refused)
        else:
            patch.setattr("zkgroups.spark.session.own_session", kept)
        # A command changes these for its process.
        patch.setattr(warnings, "showwarning", warnings.showwarning)
        patch.setattr(threading, "excepthook", threading.excepthook)
        yield run


def one_run(arguments: list[str], env: dict[str, str], together: bool) -> dict[str, Any]:
    from zkgroups_cli.main import run

    os.environ.update(env)
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    sys.stdout, sys.stderr = out, out if together else err
    code = run(arguments)
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    for name in env:
        del os.environ[name]
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
    return {"code": int(code), "out": texts[0], "err": texts[1]}
