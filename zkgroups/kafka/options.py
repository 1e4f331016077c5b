"""Where brokers are and how to be let in, as a value that may travel: to Spark's workers, for one."""

from __future__ import annotations

from dataclasses import dataclass

from .brokers import Brokers
from .properties import read_properties


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """
    What it takes to connect: addresses, and the path of a Kafka client's properties file.

    The file is read where the connection is made and not before: what is secret in it is neither in this value nor
    anywhere that it travels through.
    """

    bootstrap: str
    properties: str | None = None
    timeout: float = 15.0

    def connect(self) -> Brokers:
        """The brokers; nothing is sent yet."""
        settings = {} if self.properties is None else read_properties(self.properties)
        return Brokers.connect(self.bootstrap, properties=settings, timeout=self.timeout)
