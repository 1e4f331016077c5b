"""Run several commands in one process with one Spark session, because starting Spark takes longer than most commands.

python -m tests.doors.spark_commands '{"settings": {...}, "commands": [[...], ...]}'
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from zkgroups_cli.main import run
from zkgroups_cli.shared import engine_options

from zkgroups.spark.session import own_session


def main() -> int:
    asked = json.loads(sys.argv[1])
    with own_session(asked["settings"], master="local[2]", verbose=True) as session:

        @contextmanager
        def kept(*_options: object) -> Iterator[Any]:
            yield session

        engine_options.SparkOptions.session = kept  # type: ignore[method-assign]
        codes = [int(run(command)) for command in asked["commands"]]
        print(f"exit codes: {codes}")
        return max(codes)


if __name__ == "__main__":
    sys.exit(main())
