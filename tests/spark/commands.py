"""Run `zkgroups` in this process with the Spark session of the tests, or without any."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession

from ..cli.running import Argument, Ended
from ..cli.running import run as run_command

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
        return run_command(*arguments, env=where | env, together=together)

    with pytest.MonkeyPatch.context() as patch:
        if spark is None:
            patch.setattr(SparkOptions, "session", refused)
        else:
            patch.setattr("zkgroups.spark.session.own_session", kept)
        yield run
