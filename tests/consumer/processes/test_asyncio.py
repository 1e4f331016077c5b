"""Members for asyncio with a real event loop and a real server: signals, a suspended server, and the example."""

from __future__ import annotations

import asyncio
import itertools
import re
import textwrap
from collections.abc import AsyncIterator, Mapping

import pytest

from tests.waiting import LONGEST
from zkgroups import Consumergroup, Registry, TopicPartition, aio
from zkgroups.testing import ZooKeeperServer

from ..conftest import committed, plant_topic

pytestmark = pytest.mark.zookeeper

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def test_the_loop_continues_while_the_server_does_not_answer() -> None:
    async def main() -> None:
        with ZooKeeperServer() as server:
            registry = await asyncio.to_thread(Registry.connect, server.address)
            plant_topic(registry.client, "orders", 6)
            async with aio.Member(registry.group("billing"), ["orders"]) as member:
                generation = await member.next_generation(LONGEST)
                assert generation is not None
                server.suspend()
                try:
                    commit = asyncio.create_task(generation.commit({P0: 5}))
                    asking = asyncio.create_task(member.next_generation())
                    for _ in range(1000):
                        await asyncio.sleep(0)
                    assert not commit.done()
                    assert not asking.done()
                    commit.cancel()
                    for _ in range(1000):
                        await asyncio.sleep(0)
                    assert not commit.done()  # the commit still waits for its outcome
                finally:
                    server.resume()
                with pytest.raises(asyncio.CancelledError):
                    await commit
                asking.cancel()
                found = await asyncio.to_thread(registry.group("billing").offsets.fetch, P0)
                assert found is not None
                assert found.offset == 5
            await asyncio.to_thread(registry.close)

    asyncio.run(main())


def test_the_example_in_the_docstring_works(registry: Registry, zookeeper_hosts: str, group: Consumergroup) -> None:
    plant_topic(registry.client, "orders", 2)
    processed: list[str] = []

    class Enough(Exception):
        pass

    async def consume(offsets: Mapping[TopicPartition, int]) -> AsyncIterator[tuple[TopicPartition, str]]:
        for number in itertools.count():
            for at, offset in list(offsets.items()):
                yield at, f"{at} at {offset}, in round {number}"

    async def process(message: str) -> None:
        await asyncio.sleep(0)
        processed.append(message)
        if len(processed) == 7:
            raise Enough

    example = re.search(r"\n\n(    import asyncio\n.*?asyncio\.run\(main\(\)\)\n)", aio.__doc__ or "", re.DOTALL)
    assert example is not None
    code = textwrap.dedent(example[1]).replace("zk1:2181,zk2:2181/kafka", zookeeper_hosts)
    with pytest.raises(Enough):
        exec(compile(code, "the example", "exec"), {"consume": consume, "process": process})
    assert processed[-1] == "orders/0 at 3, in round 3"
    assert committed(group) == {P0: 3, P1: 3}
    assert not group.instances()
