"""The thread that proves sessions: one for the whole process, which runs only while a session is in use.

It sends one tiny transaction for each session every tenth of the session timeout. It does not wait for the answers:
kazoo's connection thread records them (`liveness.py`). If a session's own transactions prove it, nothing more is sent.

If answers are missing although the connection looks fine, the server is cut off from its leader, or does not work. Then
the connection is closed, so that kazoo goes to another server in time. But a server answers in the order of the
requests. So as long as data arrive, the answer to the proof is only waiting behind others on a slow link, and the
connection is kept.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final
from weakref import WeakKeyDictionary

from ...core.session_proof import PATIENCE, PERIOD
from ...deadline import uptime
from ..kazoo_compat.corrections import hang_up_and_shun, silence
from .liveness import ProofRequest, Pulse

log = logging.getLogger("zkgroups.session")

_LOOKS: Final = 5
"""How often to look for a proof before closing the connection. So a pause of the whole process, in which no answer
could be read, is not mistaken for a silent server."""


class Prover:
    """Proves the session of one client, as long as the session is in use."""

    def __init__(self, client: Any, pulse: Pulse) -> None:
        self._client = client
        self._pulse = pulse
        self._lock = threading.RLock()  # guards the fields below, and is never held during a call
        self._relying: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        self._asked: Any = None
        self._asked_at = -math.inf
        self._looks = 0
        self._look_at = -math.inf

    def rely(self, who: object, session_id: int) -> None:
        """`who` relies on that session from now on, until it is garbage collected or withdraws."""
        with self._lock:
            self._relying[who] = session_id
        _THREAD.serve(self)

    def rely_no_more(self, who: object) -> None:
        """`who` does not rely on the session any more."""
        with self._lock:
            self._relying.pop(who, None)
        _THREAD.wake()

    @property
    def needed(self) -> bool:
        """Whether any user relies on the current session."""
        if self._client._stopped.is_set():
            return False
        session_id = self._client._session_id
        with self._lock:
            return session_id in self._relying.values()

    def ask(self) -> Any:
        """Send a proof now. Return its result, for a caller that wants to wait for the answer."""
        answer = self._client.handler.async_result()
        self._client._call(ProofRequest(), answer)
        return answer

    def on_state(self) -> None:
        """Start proofs on a new connection, and stop them on a closed one. On kazoo's thread: only wakes the prover."""
        self._asked_at, self._looks = -math.inf, 0
        _THREAD.wake()

    def look(self) -> float:
        """Do what is due, and return in how many seconds to look again. Never blocks."""
        now = uptime()
        if not self._client.connected:
            self._asked, self._looks = None, 0
            return PERIOD * self._pulse.timeout
        if self._asked is not None and not self._asked.ready():
            return self._look_for_answer(now)
        left = self._pulse.due(self._asked_at) - now
        if left <= 0:
            self._asked_at, self._looks, self._asked = now, 0, self.ask()
            left = self._between_looks
            self._look_at = now + left
        return left

    @property
    def _between_looks(self) -> float:
        return PATIENCE * self._pulse.timeout / _LOOKS

    def _look_for_answer(self, now: float) -> float:
        if now < self._look_at:
            return self._look_at - now
        self._look_at = now + self._between_looks
        self._looks = 0 if silence(self._client) < self._between_looks else self._looks + 1
        if self._looks >= _LOOKS:
            self._asked = None
            log.warning(
                "ZooKeeper server %s has not proved for %.1f s that the session lives: it may be cut off from "
                "its leader; connecting to another server",
                hang_up_and_shun(self._client),
                _LOOKS * self._between_looks,
            )
        return self._between_looks

    def forget(self) -> None:
        """In a fork: drop everything, because it belongs to the parent."""
        self._lock = threading.RLock()
        self._relying = WeakKeyDictionary()
        self._asked = None
        self._pulse.void()


class _Thread:
    """Runs the thread, as long as there are sessions to prove."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # guards the two fields below, and is never held during a call
        self.provers: set[Prover] = set()
        self._thread: threading.Thread | None = None
        # Not an Event: Ctrl-C during `set` can leave it locked forever.
        self._wakes: SimpleQueue[None] = SimpleQueue()

    def serve(self, prover: Prover) -> None:
        """Prove this session too."""
        with self._lock:
            self.provers.add(prover)
            if self._thread is None:
                self._start()
        self.wake()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="zkgroups-proofs", daemon=True)
        try:
            self._thread.start()
        except BaseException:  # also Ctrl-C. If the thread runs anyway, it ends at once
            self._thread = None
            raise

    def wake(self) -> None:
        """Look at once."""
        self._wakes.put(None)

    def _run(self) -> None:
        while provers := self._needed():
            pause = min(_looked(prover) for prover in provers)
            del provers
            self._sleep(max(pause, 0.0))

    def _sleep(self, seconds: float) -> None:
        with suppress(Empty):
            self._wakes.get(timeout=seconds)
            while True:
                self._wakes.get_nowait()

    def _needed(self) -> list[Prover]:
        with self._lock:
            if self._thread is not threading.current_thread():  # Ctrl-C came between: another thread has replaced it
                return []
            self.provers = {prover for prover in self.provers if prover.needed}
            if not self.provers:
                self._thread = None
            return list(self.provers)


def _looked(prover: Prover) -> float:
    """Keep an error with one client from ending the proofs of the others."""
    try:
        return prover.look()
    except Exception:
        log.exception("a session cannot be proved, so its claims end")
        return _AFTER_AN_ERROR


_AFTER_AN_ERROR: Final = 1.0
"""In seconds."""

_THREAD = _Thread()


def _after_fork() -> None:
    global _THREAD
    _THREAD = _Thread()


os.register_at_fork(after_in_child=_after_fork)
