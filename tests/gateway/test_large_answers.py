"""Large answers are read and written without delaying other clients."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

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


def test_others_go_on_while_large_metadata_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is decoded and encoded only after the event loop has called something else meanwhile."""
    data = metadata()
    begun: list[str] = []

    async def change(_answer: Any) -> int:
        return 8

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def wait_for_others(name: str) -> None:
            convert = getattr(codec, name)

            def converted(*arguments: Any) -> Any:
                begun.append(name)
                others = threading.Event()
                loop.call_soon_threadsafe(others.set)
                assert others.wait(30)
                return convert(*arguments)

            monkeypatch.setattr(codec, name, converted)

        wait_for_others("decode_answer")
        wait_for_others("encode_answer")
        to_client = Transport()
        upstream = Upstream(list, None)
        upstream.stream = stream(Transport())
        queue = AnswerQueue(stream(to_client), upstream, lambda _error: None)
        queue.add(Changed(codec.RequestKind(codec.METADATA, 8, 7), change))
        upstream.stream.data_received(data)
        queue.proceed()
        assert await asyncio.wait_for(to_client.sent, 60) == data

    asyncio.run(main())
    assert begun == ["decode_answer", "encode_answer"]
