"""Tests that share what is dear to start run in one process.

Where they do not, each process starts a Spark and all brokers: nothing fails, all is only slower. pytest-xdist puts the
group at the end of a test's name.
"""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("together")
def test_where_tests_run_in_groups_this_one_does(request: pytest.FixtureRequest) -> None:
    in_groups = getattr(request.config.option, "loadgroup", False)  # said to each process by pytest-xdist
    assert request.node.nodeid.endswith("@together") == in_groups
