"""One test for both consumers: written for asyncio, and without its `async` and `await` for the other one."""

from __future__ import annotations

import asyncio
import inspect
import re
import time
from collections.abc import Callable, Coroutine
from contextlib import aclosing, closing
from typing import Any

import pytest
from confluent_kafka import Message

from tests.simulation.loop import run_in_a_loop
from tests.simulation.world import World
from zkgroups import Consumer, aio

from .conftest import LONGEST


def without_async(function: Callable[..., Any]) -> Any:
    """Return the same function for the consumer that is not for asyncio."""
    source = inspect.getsource(function)
    source = source[source.index("async def") :]
    for word in ("async ", "await "):
        source = re.sub(word, "", source)
    source = source.replace("aclosing", "closing")
    namespace = {**vars(inspect.getmodule(function)), "pause": time.sleep, "closing": closing}  # type: ignore[arg-type]
    if function is not receive:
        namespace["receive"] = without_async(receive)
    exec(source, namespace)
    return namespace[function.__name__]


async def pause(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def receive(reading: Any, count: int, at_once: int = 500) -> list[Message]:
    """Receive exactly that many messages."""
    found: list[Message] = []
    while len(found) < count:
        new = await reading.consume(min(at_once, count - len(found)), LONGEST)
        assert new, f"{len(found)} of {count} messages have come: {reading.stats()}"
        found += new
    return found


def both_faces(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test for each consumer. Its argument `consumer` creates one: options."""
    given = inspect.signature(test)

    def run(world: World, group: Any, topic: Any, face: str, **fixtures: Any) -> None:
        kind: Any = aio.Consumer if face == "asyncio" else Consumer

        def consumer(**options: Any) -> Any:
            return kind(group, [topic.name], **{"kafka": "simulated", **options})

        known = {"world": world, "group": group, "topic": topic, "consumer": consumer, **fixtures}
        chosen = {name: known[name] for name in given.parameters}
        if face == "asyncio":
            run_in_a_loop(world, test(**chosen))
        else:
            without_async(test)(**chosen)

    names = [*(name for name in given.parameters if name != "consumer"), "world", "group", "topic", "face"]
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in dict.fromkeys(names)]
    )
    run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
    run.pytestmark = getattr(test, "pytestmark", [])  # type: ignore[attr-defined]
    return pytest.mark.parametrize("face", ["threads", "asyncio"])(run)


__all__ = ["aclosing", "both_faces", "pause", "receive", "without_async"]
