"""Make the outcome of a call unknown."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from zkgroups import Registry
from zkgroups.exceptions import NotConnectedError, OutcomeUnknownError
from zkgroups.testing import TcpProxy

from .events import attempt


def unknown(call: Callable[[], object], registry: Registry, proxy: TcpProxy) -> None:
    """Carry out the call, and lose the reply to its first request."""
    proxy.cut_before_reply(1)
    proxy.refuse()
    with pytest.raises(OutcomeUnknownError):
        call()
    connected_again(registry, proxy)


def connected_again(registry: Registry, proxy: TcpProxy) -> None:
    """End all faults, and return when the registry is connected."""
    proxy.heal()
    while isinstance(attempt(registry.group("billing").create), NotConnectedError):
        pass
