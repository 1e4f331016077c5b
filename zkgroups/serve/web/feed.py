"""New pictures for coroutines: the sweeps run in a thread, and the server in an event loop."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from ..picture.values import Picture
from ..sweep.publisher import Publisher


class Feed:
    """The pictures of a publisher, for one event loop."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()
        self.is_closed = False

    @property
    def picture(self) -> Picture:
        """The last picture."""
        return self._publisher.picture

    def open(self) -> None:
        """Begin to listen, in the event loop."""
        self._loop = asyncio.get_running_loop()
        self._publisher.add(self._notify)

    def close(self) -> None:
        """End all waiting."""
        if not self.is_closed:
            self.is_closed = True
            self._publisher.remove(self._notify)
            self._wake()

    def _notify(self) -> None:
        """Called in the thread of the sweeps."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def newer(self, number: int, timeout: float) -> Picture:
        """Wait for a picture with a higher number, and return the last picture. Return it, too, after the timeout."""
        changed = self._changed
        if self.picture.number <= number and not self.is_closed:
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), timeout)
        return self.picture
