"""Numbers for names of topics and groups on brokers that many tests share."""

from __future__ import annotations

import time
from collections.abc import Iterator


def unique_numbers() -> Iterator[int]:
    """Yield numbers that no other test has, not even one in a fork of this process: `scripts/mutate.py` makes forks."""
    while True:
        yield time.monotonic_ns()
