"""The seed of tests that draw at random: always the same in `make test`, and a fresh one in `make soak`.

`ZKGROUPS_SEED` sets it. A run that fails prints it.
"""

from __future__ import annotations

import os
from typing import Final

VARIABLE: Final = "ZKGROUPS_SEED"
FUZZ_SECONDS: Final = float(os.environ.get("ZKGROUPS_SOAK_FUZZ", "600"))
"""How long each test of damaged input takes in `make soak`."""


def pin() -> None:
    """Set the variable for all processes of the run, unless it is set."""
    os.environ.setdefault(VARIABLE, "1")


def seed() -> int:
    """Return the seed of this run."""
    pin()
    return int(os.environ[VARIABLE])


def seeds(number: int) -> range:
    """Return that many seeds. Two runs with different seeds have different ones."""
    return range(seed() * number, (seed() + 1) * number)
