"""Tests that share an expensive server run in one process.

Otherwise each process would start Spark and all brokers: the tests would pass, but take longer. pytest-xdist appends
the group to the name of a test.
"""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("together")
def test_with_loadgroup_a_test_runs_in_its_group(request: pytest.FixtureRequest) -> None:
    in_groups = getattr(request.config.option, "loadgroup", False)  # pytest-xdist sets it in each worker
    assert request.node.nodeid.endswith("@together") == in_groups
