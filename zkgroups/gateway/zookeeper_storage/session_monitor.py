"""A thread that checks whether the session of a gateway's members may have expired.

kazoo reports an expired session only when a server answers again. Until then the members would continue to work, while
other clients claim their partitions. So a session also counts as lost if it was not proved for too long, as for every
instance (`docs/guarantees.md`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from ...deadline import uptime
from .work_queues import log

PERIOD: Final = 0.2
"""In seconds: how often the sessions are checked."""
SOON: Final = 1.0
"""In seconds: how often unfinished assignments and deregistrations are retried."""


class SessionMonitor:
    """Calls `check` several times a second, `retry` every second, and `reconcile` from time to time."""

    def __init__(
        self,
        check: Callable[[], object],
        retry: Callable[[], object],
        reconcile: Callable[[], object],
        reconcile_every: float,
    ) -> None:
        self._check = check
        self._periods = {retry: SOON, reconcile: reconcile_every}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="zkgroups-gateway-monitor", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        due = {task: uptime() + period for task, period in self._periods.items()}
        while not self._ended.wait(PERIOD):
            try:
                self._check()
                for task, period in self._periods.items():
                    if uptime() >= due[task]:
                        due[task] = uptime() + period
                        task()
            except Exception:
                log.exception("unexpected error in the monitor of the gateway's session")
