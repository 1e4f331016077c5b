"""Which process runs which test: groups of tests stay together, and a run ends although a process crashed."""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadGroupScheduling


class Groups(LoadGroupScheduling):
    """Gives the tests of a crashed process that had not begun to the others.

    pytest-xdist 3.8 gives the others everything that the process ever had. They get groups without a test in them, wait
    for the next test, and never end. It also runs the test again that crashed.
    """

    def remove_node(self, node: Any) -> str | None:
        had = self.assigned_work[node]
        for group in [group for group, tests in had.items() if all(tests.values())]:
            del had[group]
        crashed = next((test for tests in had.values() for test, done in tests.items() if not done), None)
        if crashed is not None:
            group = self._split_scope(crashed)
            had[group][crashed] = True
            if all(had[group].values()):
                del had[group]
        super().remove_node(node)
        return crashed


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups | None:
    return Groups(config, log) if config.getvalue("dist") == "loadgroup" else None
