"""Members and consumers for asyncio: `zkgroups.Member` and `zkgroups.Consumer` for use in an event loop.

The rebalance and its thread are the same.

    import asyncio
    from zkgroups import Registry
    from zkgroups.aio import Generation, Member

    async def work(generation: Generation) -> None:
        offsets = {at: start if isinstance(start, int) else 0 for at, start in generation.partitions.items()}
        async for at, message in consume(offsets):      # yours: whatever reads from Kafka
            await process(message)
            offsets[at] += 1
            generation.mark(at, offsets[at])

    async def main() -> None:
        with Registry.connect("zk1:2181,zk2:2181/kafka") as registry:
            async with Member(registry.group("billing"), ["orders"], auto_commit_every=5.0) as member:
                async for generation in member.generations():
                    generation.start(work)
                    await generation.wait()

    asyncio.run(main())

The tasks of a generation are cancelled at its end, as in a task group. A task can clean up and commit in `finally`. It
has `release_timeout` for this; then its marked offsets are committed. To let a task finish its message before it is
cancelled, use `start(work, grace=...)`.

Nothing here blocks the loop. All callbacks, functions and coroutine functions, run in the loop. The member's thread
waits for each of them, at most for `rebalance_timeout`. Functions given as `assignors` and `partitions` run on that
thread.

Modules:

    member.py      Member and Generation
    consumer.py    Consumer
    event_loop.py  the event loop in which they live, and the threads that work for them
"""

from .consumer import Consumer
from .member import Generation, Member, Work

__all__ = ["Consumer", "Generation", "Member", "Work"]
