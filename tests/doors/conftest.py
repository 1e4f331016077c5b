"""One ensemble with logins for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka.conftest import own

from .doors import Doors

__all__ = ["own"]


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    """Every test leaves all servers serving."""
    with Doors(tmp_path_factory.mktemp("doors")) as doors:
        yield doors
