"""Large answers are read and written without delaying other clients."""

from __future__ import annotations

import asyncio
from typing import Any

from zkgroups.gateway import Limits
from zkgroups.gateway.connections.answer_queue import AnswerQueue, Changed
from zkgroups.gateway.connections.byte_stream import ByteStream
from zkgroups.gateway.connections.frames import FrameReader
from zkgroups.kafka.wire import codec

PARTITIONS = 10_000


def metadata() -> bytes:
    kind = codec.MetadataResponse.MetadataResponseTopic
    partitions = [
        kind.MetadataResponsePartition(
            error_code=0, partition_index=number, leader_id=1, replica_nodes=[1], isr_nodes=[1], offline_replicas=[]
        )
        for number in range(PARTITIONS)
    ]
    topic = kind(error_code=0, name="orders", topic_id=None, partitions=partitions)
    return codec.encode_answer(codec.MetadataResponse(brokers=[], topics=[topic]), 8, 7)


class OpenTransport(asyncio.Transport):
    """A transport that sends nothing."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class FakeUpstream:
    """An upstream whose answers are there already."""

    def __init__(self, data: bytes) -> None:
        stream = ByteStream()
        stream.connection_made(OpenTransport())
        stream.data_received(data)
        self.frames = FrameReader(stream, longest=2**30, stall_timeout=30)


class FakeClient:
    """A stream to a client that reads at once."""

    def __init__(self) -> None:
        self.sent = asyncio.get_running_loop().create_future()

    async def send(self, data: bytes, _stall_timeout: float) -> None:
        self.sent.set_result(bytes(data))


def test_others_go_on_while_large_metadata_is_changed() -> None:
    data = metadata()
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def change(_answer: Any) -> int:
        return 8

    async def main() -> None:
        client: Any = FakeClient()
        upstream: Any = FakeUpstream(data)
        queue = AnswerQueue(client, upstream, Limits())
        await queue.add(Changed(codec.RequestKind(codec.METADATA, 8, 7), change))
        tasks = [asyncio.create_task(others()), asyncio.create_task(queue.run())]
        assert await asyncio.wait_for(client.sent, 30) == data
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())
    assert turns > 20
