"""The client for Kafka's brokers: partitions, log ranges, and the groups and committed offsets on the brokers."""

from __future__ import annotations

from ..core.kafka_values import NativeGroup, NativeMember, NativeOffset, NativeState
from .brokers import Brokers
from .options import BrokerOptions
from .properties import read_properties

__all__ = ["BrokerOptions", "Brokers", "NativeGroup", "NativeMember", "NativeOffset", "NativeState", "read_properties"]
