"""A check after every test: no task and no thread is left behind."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from ...testing.waiting import eventually


@pytest.fixture(autouse=True)
def nothing_is_forgotten(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No task is destroyed while it is pending, and no exception is left unretrieved."""
    yield
    gc.collect()
    assert [record for record in caplog.get_records("call") if record.name in ("asyncio", "concurrent.futures")] == []
    assert eventually(lambda: not [each for each in threading.enumerate() if each.name.startswith("zkgroups-")])
