"""A plain client in the chroot of the test."""

from __future__ import annotations

from tests.zookeeper.conftest import raw

__all__ = ["raw"]
