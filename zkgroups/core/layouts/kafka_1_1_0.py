"""The layout of brokers of Kafka 1.1.0, which commit old clients' offsets to a directory that nobody else reads.

    /consumers/{group}/offset/{topic}/{partition}     the next message to read, as decimal text

These are the offsets of clients that commit with version 0 of Kafka's OffsetCommit request. All other releases of Kafka
keep them in `offsets`, with an s. So after an update of the broker, such a client gets the offsets from before 1.1.0.
"""

from __future__ import annotations

from typing import Final

from .legacy import DecimalLayout

DIRECTORY: Final = "offset"
"""The name of the directory in a group."""

KAFKA_1_1_0: Final = DecimalLayout("kafka-1.1.0", DIRECTORY)
