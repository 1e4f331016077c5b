"""What the servers of this run cannot do, because `ZKGROUPS_TEST_RELEASE` chooses an old release."""

from __future__ import annotations

import pytest

from zkgroups.testing.zookeeper_server import default_release, is_before

MULTIREAD, RECURSIVE_WATCH, REQUIRED_LOGINS, TLS = "3.6.0", "3.6.0", "3.6.0", "3.5.0"
"""The first releases that answer many reads in one request, that watch all nodes below one, that can require a login,
and that encrypt connections."""


REFUSED_SESSIONS = HIDDEN_NODES = "3.9.0"
"""A release that refuses a session with ephemeral nodes in read-only mode, and that answers nothing about a node
without permission to read it."""


def has(release: str) -> bool:
    """Return True if the servers of this run are at least of this release."""
    chosen = default_release()
    return chosen is None or not is_before(chosen, release)


def since(release: str, feature: str) -> pytest.MarkDecorator:
    """Skip the test if the servers are older than the release that introduced a feature."""
    return pytest.mark.skipif(not has(release), reason=f"ZooKeeper {default_release()} has no {feature}")


needs_multiread = since(MULTIREAD, "MultiRead")
needs_recursive_watch = since(RECURSIVE_WATCH, "recursive watch")
needs_tls = since(TLS, "TLS")
needs_required_logins = since(REQUIRED_LOGINS, "required logins")
