"""Events of watches that kazoo does not know, such as a persistent watch on a whole tree.

kazoo keeps a watcher for each path, and ignores events of other paths.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kazoo.protocol.serialization import Watch


def report_events(client: Any, on_event: Callable[[str], object]) -> None:
    """Call `on_event(path)` for every event, on kazoo's thread, which it must not block. kazoo gets the event, too."""
    connection = client._connection
    read = connection._read_watch_event

    def read_watch_event(event: bytes, offset: int) -> None:
        read(event, offset)  # decodes it strictly: see `safe_decoding.py`
        watch, _end = Watch.deserialize(event, offset)
        on_event(client.unchroot(watch.path))

    connection._read_watch_event = read_watch_event
