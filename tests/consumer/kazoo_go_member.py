"""A real member of kazoo-go: a program in Go, built from the folder `kazoo_go`."""

from __future__ import annotations

from pathlib import Path

from tests.waiting import eventually

from ..go_programs import built
from ..printing_consumer import PrintingConsumer

SOURCES = Path(__file__).parent / "kazoo_go"


class KazooGoMember(PrintingConsumer):
    """It prints the committed offset of each new partition, and commits ten messages more. A busy one commits one
    message after the other, in a session that outlives a restart of the server."""

    def __init__(self, hosts: str, group: str, topic: str, *, busy: bool = False) -> None:
        self._arguments = (hosts, group, topic, *(["busy"] if busy else []))

    def command(self, _folder: Path) -> list[str]:
        return [str(built(SOURCES)), *self._arguments]

    @property
    def id(self) -> str:
        """Its instance id. Waits until it is registered."""
        assert eventually(lambda: self._after("registered ")), self.lines()
        return self._after("registered ")[0]

    @property
    def committed(self) -> list[str]:
        """The acknowledged commits of a busy member, like `orders-0@7`."""
        return self._after("committed ")

    @property
    def seen(self) -> set[str]:
        """The registrations that it could read: instance id, and number of streams."""
        return set(self._after("seen "))

    def _after(self, start: str) -> list[str]:
        return [line.removeprefix(start) for line in self.lines() if line.startswith(start)]
