"""What only Kafka's brokers know and do: partitions, where logs start and end, Kafka's own groups and their offsets."""

from __future__ import annotations

from ..core.kafka_values import NativeGroup, NativeMember, NativeOffset, NativeState
from .brokers import Brokers
from .options import BrokerOptions
from .properties import read_properties

__all__ = ["BrokerOptions", "Brokers", "NativeGroup", "NativeMember", "NativeOffset", "NativeState", "read_properties"]
