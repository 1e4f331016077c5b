"""Record one batch in copies of an audit, each in a process that is killed before its next change of the disk.

    python -m tests.audit.killed_runs ZOOKEEPER AUDIT FOLDER

The copies are FOLDER/0, FOLDER/1, and so on. The last run is not killed.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from zkgroups.audit import audit
from zkgroups.audit.local_audit import run_audit

from ..snapshots.killed_runs import until_one_ends

MERGE_FACTOR = 2
"""So that a batch also merges pieces, and writes `standing`."""


def main(zookeeper: str, begun: Path, folder: Path) -> None:
    audit.MERGE_FACTOR = MERGE_FACTOR  # type: ignore[misc]

    def record(number: int) -> None:
        destination = folder / str(number)
        run_audit(str(destination), zookeeper, once=True)

    until_one_ends(record, lambda number: shutil.copytree(begun, folder / str(number)))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
