"""How to connect to brokers, as a value without secrets that can be sent to Spark workers."""

from __future__ import annotations

from dataclasses import dataclass

from ..brokers import Brokers
from .properties import read_properties


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """
    How to connect to brokers, as a value that can be sent to Spark workers.

    - `bootstrap`: the addresses, e.g. "kafka1:9092,kafka2:9092".
    - `properties`: the path of a Kafka client's properties file, for example with TLS and SASL settings. The file is
      read by `connect`, on the machine that connects. So its secrets are never in this value.
    - `timeout`: how long each call may take, in seconds.
    - `unreachable_timeout`: a shorter time for brokers that refuse connections: see `Brokers`.
    """

    bootstrap: str
    properties: str | None = None
    timeout: float = 15.0
    unreachable_timeout: float | None = None

    def connect(self) -> Brokers:
        """Return the brokers. Sends nothing yet."""
        settings = {} if self.properties is None else read_properties(self.properties)
        return Brokers.connect(
            self.bootstrap,
            properties=settings,
            timeout=self.timeout,
            unreachable_timeout=self.unreachable_timeout,
        )
