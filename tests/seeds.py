"""The seed of tests that draw at random: another one every day, and a fresh one in `make soak`.

`ZKGROUPS_SEED` sets it. A run that fails prints it.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Final

VARIABLE: Final = "ZKGROUPS_SEED"
FUZZ_SECONDS: Final = float(os.environ.get("ZKGROUPS_SOAK_FUZZ", "600"))
"""How long each test of damaged input takes in `make soak`."""


def pin() -> None:
    """Set the variable, so that all processes of a run have the same seed, also at midnight."""
    os.environ.setdefault(VARIABLE, f"{datetime.now(UTC):%Y%m%d}")


def seed() -> int:
    """Return the seed of this run."""
    pin()
    return int(os.environ[VARIABLE])


def seeds(number: int) -> range:
    """Return that many seeds. Two days have different ones."""
    return range(seed() * number, (seed() + 1) * number)
