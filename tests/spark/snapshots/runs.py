"""Runs of snapshots, and the times at which they began."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from zkgroups.storage.atomic_folder import ABANDONED_AFTER
from zkgroups.storage.timestamps import timestamp_text

MODULE = sys.modules["zkgroups.spark.snapshots.snapshot"]


LONG_AGO = timestamp_text(datetime.now(UTC) - ABANDONED_AFTER - timedelta(hours=1))
NOT_SO_LONG_AGO = timestamp_text(datetime.now(UTC) - ABANDONED_AFTER + timedelta(hours=1))


def left(destination: Path) -> list[str]:
    """Return the folders that exist, and the contents of unfinished ones."""
    return sorted(str(path.relative_to(destination)) for path in destination.glob("*/*"))
