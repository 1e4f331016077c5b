"""Record the state of the connection, for commands that check it periodically."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Self

from zkgroups import Registry

CONNECTED: Final = "CONNECTED"
LOST: Final = "LOST"


class ConnectionState:
    """Records the connection states that kazoo reports on its own thread."""

    def __init__(self, registry: Registry) -> None:
        self._client = registry.client
        self._states: deque[str] = deque()

    def changes(self) -> Iterator[str]:
        """Yield the states since the last call."""
        while self._states:
            yield str(self._states.popleft())

    def __enter__(self) -> Self:
        self._client.add_listener(self._record)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.remove_listener(self._record)

    def _record(self, state: str) -> None:
        self._states.append(state)
