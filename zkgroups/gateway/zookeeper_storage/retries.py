"""Retry while ZooKeeper is not available, as long as the session may still live."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Final

from ...deadline import Deadline
from ...exceptions import SessionLostError, UnavailableError, ZkgroupsException
from ...zookeeper.session.session import Session

PAUSE: Final = 0.05
"""In seconds, before each retry: a server may also refuse requests while it is connected."""


def may_try_again(error: Exception, session: Session, deadline: Deadline) -> bool:
    """Wait for a connection, and return True if the same work may succeed now.

    A write whose outcome is unknown may be retried, too: all work here first reads whether it was carried out.
    """
    if not isinstance(error, UnavailableError) or isinstance(error, SessionLostError) or deadline.passed:
        return False
    time.sleep(PAUSE)
    with suppress(ZkgroupsException):
        return session.wait_connected(deadline)
    return False
