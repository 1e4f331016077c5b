"""How to connect to brokers, as a value without secrets that can be sent to Spark workers."""

from __future__ import annotations

from dataclasses import dataclass

from .brokers import Brokers
from .properties import read_properties


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """
    The addresses of brokers, and the path of a Kafka client's properties file.

    The file is read when the connection is made, on the machine that connects. So its secrets are never in this value.
    """

    bootstrap: str
    properties: str | None = None
    timeout: float = 15.0

    def connect(self) -> Brokers:
        """Return the brokers. Sends nothing yet."""
        settings = {} if self.properties is None else read_properties(self.properties)
        return Brokers.connect(self.bootstrap, properties=settings, timeout=self.timeout)
