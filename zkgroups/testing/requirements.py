"""What a test needs and cannot have: skipped on a laptop, failed where somebody said that it must be there.

`ZKGROUPS_REQUIRE=zookeeper,spark` names what must be there; CI sets it, so that a missing server is never a green run.
"""

from __future__ import annotations

import os
from typing import NoReturn

REQUIRE_VARIABLE = "ZKGROUPS_REQUIRE"


def is_required(name: str) -> bool:
    """Whether `ZKGROUPS_REQUIRE` names it."""
    return name in (part.strip() for part in os.environ.get(REQUIRE_VARIABLE, "").split(","))


def missing(name: str, reason: str) -> NoReturn:
    """Skip the running test because `name` (zookeeper, spark, kafka, docker) cannot be had; fail it if required."""
    import pytest

    if is_required(name):
        pytest.fail(f"{name} is required by {REQUIRE_VARIABLE} and missing: {reason}", pytrace=False)
    pytest.skip(f"{name}: {reason}")
