"""What only Kafka's brokers know: partitions, where logs start and end, and the offsets of Kafka's own groups."""

from __future__ import annotations

from ..core.model import NativeOffset
from .brokers import Brokers
from .properties import read_properties

__all__ = ["Brokers", "NativeOffset", "read_properties"]
