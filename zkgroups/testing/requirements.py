"""Missing requirements of a test: skip it, or fail it if `ZKGROUPS_REQUIRE` names the requirement.

CI sets `ZKGROUPS_REQUIRE=zookeeper,spark`, so that a missing server never makes a green run.
"""

from __future__ import annotations

import os
from typing import NoReturn

REQUIRE_VARIABLE = "ZKGROUPS_REQUIRE"


def is_required(name: str) -> bool:
    """Return True if `ZKGROUPS_REQUIRE` names this requirement."""
    return name in (part.strip() for part in os.environ.get(REQUIRE_VARIABLE, "").split(","))


def missing(name: str, reason: str) -> NoReturn:
    """Skip the current test because `name` (zookeeper, spark, kafka, docker, go) is missing; fail it if required."""
    import pytest

    if is_required(name):
        pytest.fail(f"{name} is required by {REQUIRE_VARIABLE} and missing: {reason}", pytrace=False)
    pytest.skip(f"{name}: {reason}")
