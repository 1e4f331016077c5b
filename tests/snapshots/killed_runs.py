"""Take a snapshot again and again, each time in a process that is killed before its next change of the disk.

    python -m tests.snapshots.killed_runs ZOOKEEPER FOLDER [AUDIT]

The destinations are FOLDER/0, FOLDER/1, and so on. The last run is not killed. With AUDIT, the destinations are copies
of it, and each run records one batch.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet

from zkgroups.audit import audit
from zkgroups.audit.audit import run_audit
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

MERGE_FACTOR = 2
"""So that a batch also merges pieces, and writes `standing`."""


def killed_before(number: int, usual: Callable[..., Any], done: list[str]) -> Callable[..., Any]:
    def change(*arguments: Any, **options: Any) -> Any:
        if len(done) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        done.append(usual.__name__)
        return usual(*arguments, **options)

    return change


def until_one_ends(work: Callable[[int], object], prepare: Callable[[int], object] = lambda _number: None) -> None:
    """Do some work again and again, each time in a process that is killed before its next change of the disk."""
    for number in count():
        prepare(number)
        if not (child := os.fork()):
            _run(number, work)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status == 0:
            return
        assert os.WTERMSIG(status) == signal.SIGKILL, status


def _run(number: int, work: Callable[[int], object]) -> None:
    done: list[str] = []
    for owner, name in CHANGES:
        setattr(owner, name, killed_before(number, getattr(owner, name), done))
    work(number)


def main(zookeeper: str, folder: Path, begun: Path | None) -> None:
    if begun is None:
        until_one_ends(lambda number: take_snapshot(str(folder / str(number)), zookeeper))
    else:
        audit.MERGE_FACTOR = MERGE_FACTOR  # type: ignore[misc]
        until_one_ends(
            lambda number: run_audit(str(folder / str(number)), zookeeper, once=True),
            lambda number: shutil.copytree(begun, folder / str(number)),
        )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None)
