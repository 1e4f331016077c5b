"""Kafka's clients in Go."""

from __future__ import annotations

from pathlib import Path

from ..go_programs import built
from ..printing_consumer import PrintingConsumer

SOURCES = Path(__file__).parent / "go_members"


class GoConsumer(PrintingConsumer):
    """A member of a group: `client` is franz-go, kafka-go or sarama. It commits what it has read."""

    def __init__(self, client: str, bootstrap: str, group: str, topic: str) -> None:
        self._arguments = (client, bootstrap, group, topic)

    def command(self, _folder: Path) -> list[str]:
        return [str(built(SOURCES)), *self._arguments]
