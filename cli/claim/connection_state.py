"""What becomes of the connection, for a command that goes on and looks at it from time to time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Self

from zkgroups import Registry

CONNECTED: Final = "CONNECTED"
LOST: Final = "LOST"


class Link:
    """The states that kazoo tells of, one after the other; on its thread they are only noted."""

    def __init__(self, registry: Registry) -> None:
        self._client = registry.client
        self._states: deque[str] = deque()

    def news(self) -> Iterator[str]:
        """What has happened since the last call."""
        while self._states:
            yield str(self._states.popleft())

    def __enter__(self) -> Self:
        self._client.add_listener(self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.remove_listener(self._note)

    def _note(self, state: str) -> None:
        self._states.append(state)
