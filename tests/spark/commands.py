"""Run `zkgroups` in this process with the Spark session of the tests, because starting another one is slow."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession

from ..cli.kept_spark import one_run
from ..cli.running import Argument, Ended

Command = Callable[..., Ended]


@contextmanager
def command_on(spark: SparkSession, hosts: str | None, *, together: bool = False) -> Iterator[Command]:
    """Run `zkgroups` with ZooKeeper named in the environment; with `together`, stdout also has what stderr prints."""
    from zkgroups_cli.shared.spark_options import SparkOptions

    @contextmanager
    def kept(_self: object, _options: object) -> Iterator[SparkSession]:
        yield spark

    def run(*arguments: Argument, **env: str) -> Ended:
        where = {} if hosts is None else {"ZKGROUPS_ZOOKEEPER": hosts}
        return Ended(**one_run(list(map(str, arguments)), {"ZKGROUPS_CONFIG": os.devnull} | where | env, together))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SparkOptions, "session", kept)
        # A command changes these for its process.
        patch.setattr(warnings, "showwarning", warnings.showwarning)
        patch.setattr(threading, "excepthook", threading.excepthook)
        yield run
