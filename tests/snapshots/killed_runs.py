"""Take a snapshot again and again, each time in a process that is killed before its next change of the disk.

    python -m tests.snapshots.killed_runs ZOOKEEPER FOLDER

The destinations are FOLDER/0, FOLDER/1, and so on. The last run is not killed.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet

from zkgroups.snapshots.local_snapshot import take_snapshot
from zkgroups.storage.files import LocalFiles

CHANGES = [
    (LocalFiles, "write_text"),
    (LocalFiles, "make_folder"),
    (LocalFiles, "move"),
    (LocalFiles, "delete"),
    (parquet.ParquetWriter, "write_table"),
    (parquet.ParquetWriter, "close"),
]


def killed_before(number: int, usual: Callable[..., Any], done: list[str]) -> Callable[..., Any]:
    def change(*arguments: Any, **options: Any) -> Any:
        if len(done) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        done.append(usual.__name__)
        return usual(*arguments, **options)

    return change


def run(number: int, zookeeper: str, folder: Path) -> None:
    done: list[str] = []
    for owner, name in CHANGES:
        setattr(owner, name, killed_before(number, getattr(owner, name), done))
    take_snapshot(str(folder / str(number)), zookeeper)


def main(zookeeper: str, folder: Path) -> None:
    for number in count():
        if not (child := os.fork()):
            run(number, zookeeper, folder)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status == 0:
            return
        assert os.WTERMSIG(status) == signal.SIGKILL, status


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
