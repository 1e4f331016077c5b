"""The client for Kafka's brokers: partitions, log ranges, and the groups and committed offsets on the brokers.

Needs the extra `zkgroups[kafka]`. The lag of a legacy group is the log end minus its committed offset:

    with Registry.connect("zk1:2181/kafka") as registry, Brokers.connect("kafka1:9092") as brokers:
        offsets = registry.group("billing").offsets
        committed = {found.at: found for found in offsets if isinstance(found, CommittedOffset)}
        for at, log in brokers.ranges(committed).items():
            print(at, "unknown" if log is None else log.end - committed[at].offset)
"""

from __future__ import annotations

from ..core.kafka_values import NativeGroup, NativeMember, NativeOffset, NativeState
from .brokers import BrokerOptions, Brokers
from .properties import read_properties

__all__ = ["BrokerOptions", "Brokers", "NativeGroup", "NativeMember", "NativeOffset", "NativeState", "read_properties"]
