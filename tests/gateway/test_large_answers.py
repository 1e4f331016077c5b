"""Large answers are read and written without delaying other clients."""

from __future__ import annotations

import asyncio
from typing import Any

from zkgroups.gateway.connections.answer_queue import AnswerQueue, Changed
from zkgroups.gateway.connections.frame_stream import FrameStream
from zkgroups.gateway.connections.upstream import Upstream
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


class Transport(asyncio.Transport):
    """A transport that sends at once."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent.set_result(bytes(data))


def stream(transport: Transport) -> FrameStream:
    found = FrameStream(longest=2**30)
    found.connection_made(transport)
    return found


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
        to_client = Transport()
        upstream = Upstream(list, None)
        upstream.stream = stream(Transport())
        queue = AnswerQueue(stream(to_client), upstream, lambda _error: None)
        queue.add(Changed(codec.RequestKind(codec.METADATA, 8, 7), change))
        upstream.stream.data_received(data)
        counting = asyncio.create_task(others())
        queue.proceed()
        assert await asyncio.wait_for(to_client.sent, 30) == data
        counting.cancel()

    asyncio.run(main())
    assert turns > 20
