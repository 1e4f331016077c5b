"""The command in a process that keeps its Spark session, because starting Spark takes longer than most commands.

python -m tests.cli.kept_spark     reads a line of JSON for each run, and answers with one
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .running import Argument, Ended, environment

ROOT = Path(__file__).parent.parent.parent


class Kept:
    """Runs the command repeatedly in another process. All runs share one Spark session."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def run(self, *arguments: Argument, env: dict[str, str], together: bool = False) -> Ended:
        """Run the command, and return its result as if it had run in its own process. With `together`, stderr is added
        to stdout."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        asked = {"arguments": list(map(str, arguments)), "env": env, "together": together}
        print(json.dumps(asked), file=process.stdin, flush=True)
        return Ended(**json.loads(process.stdout.readline()))

    def signal(self, number: int) -> None:
        """Send a signal to the process that runs the command."""
        self._started().send_signal(number)

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            command = [sys.executable, "-m", "tests.cli.kept_spark"]
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            self._process = subprocess.Popen(command, cwd=ROOT, env=environment(), **pipes)
        return self._process

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.communicate(timeout=60)


def main() -> None:
    from zkgroups_cli.shared import spark_options

    from zkgroups.spark.session import own_session

    answers = sys.stdout
    conf = {"spark.sql.shuffle.partitions": "2", "spark.default.parallelism": "2"}
    with own_session(conf, master="local[2,4]") as session:

        @contextmanager
        def kept(_self: spark_options.SparkOptions, _options: object) -> Iterator[Any]:
            yield session

        spark_options.SparkOptions.session = kept  # type: ignore[method-assign]
        for line in sys.stdin:
            print(json.dumps(one_run(**json.loads(line))), file=answers, flush=True)


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


if __name__ == "__main__":
    main()
