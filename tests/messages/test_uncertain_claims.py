"""While the claims are not certain any more, no message is begun. What was fetched before comes when they are again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Message

from tests.testing.waiting import eventually
from zkgroups import Consumer, Consumergroup, aio
from zkgroups.messages import reading
from zkgroups.messages.followed_member import FollowedMember
from zkgroups.testing import KafkaBroker

from ..consumer.aio.loops import in_a_loop
from .conftest import Loops, Topic
from .looping import LONGEST, QUICK

MANY = 50


class Claims:
    """The claims of a consumer. The test says when they are certain; its member notices nothing."""

    def __init__(self) -> None:
        self.certain = True
        self.asked = 0
        """How often the consumer has asked since they are not certain."""
        self.begun: list[bool] = []
        """For each message that was begun, whether they were certain."""

    def ask(self, _member: object) -> bool:
        self.asked += not self.certain
        return self.certain

    def begin(self, _message: Message) -> None:
        """Begin a message. They are not certain any more after the first one."""
        self.begun.append(self.certain)
        if len(self.begun) == 1:
            self.certain = False

    async def begin_in_task(self, message: Message) -> None:
        self.begin(message)

    def asked_in_vain(self) -> bool:
        """Wait until the consumer has asked, and return whether it has begun no other message."""
        return eventually(lambda: self.asked, timeout=LONGEST) and self.begun == [True]

    def have_let_all_begin(self) -> bool:
        return eventually(lambda: len(self.begun) >= MANY, timeout=LONGEST) and self.begun == [True] * MANY


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> Claims:
    claims = Claims()
    monkeypatch.setattr(FollowedMember, "alive", property(claims.ask))
    monkeypatch.setattr(reading, "_MOMENT", -1.0)  # always ask
    return claims


@pytest.fixture
def topic(topic: Topic) -> Topic:
    """One partition has messages: they are fetched together."""
    topic.write(MANY, 0)
    return topic


@pytest.fixture
def options(legacy_kafka: KafkaBroker) -> dict[str, Any]:
    return {"kafka": QUICK | {"bootstrap.servers": legacy_kafka.address}}


def test_a_loop_receives_no_message_meanwhile(topic: Topic, loop: Loops, claims: Claims) -> None:
    loop(topic, body=claims.begin)
    assert claims.asked_in_vain()
    claims.certain = True
    assert claims.have_let_all_begin()


def test_a_call_that_already_waits_returns_the_fetched_messages_afterwards(
    topic: Topic, group: Consumergroup, options: dict[str, Any], claims: Claims
) -> None:
    with Consumer(group, [topic.name], **options) as consumer:
        found = consumer.consume(2, LONGEST)
        claims.certain = False

        def wait() -> None:
            eventually(lambda: claims.asked > 2, timeout=LONGEST)
            claims.certain = True

        waiting = threading.Thread(target=wait)
        waiting.start()
        while len(found) < MANY and (new := consumer.consume(MANY, LONGEST / 4)):
            found += new
        waiting.join()
    assert [message.offset() for message in found] == list(range(MANY))


@in_a_loop
async def test_a_loop_of_asyncio_receives_no_message_meanwhile(
    topic: Topic, group: Consumergroup, options: dict[str, Any], claims: Claims
) -> None:
    seen: list[bool] = []

    def look() -> None:
        seen.append(claims.asked_in_vain())
        claims.certain = True

    looking = threading.Thread(target=look)
    async with aio.Consumer(group, [topic.name], **options) as consumer:
        looking.start()
        async for message in consumer:
            claims.begin(message)
            if len(claims.begun) == MANY:
                break
    looking.join()
    assert seen == [True]
    assert claims.have_let_all_begin()


@pytest.mark.parametrize("kind", ["function", "coroutine function"])
def test_run_begins_no_message_meanwhile(
    topic: Topic, group: Consumergroup, options: dict[str, Any], claims: Claims, kind: str
) -> None:
    handler: Callable[[Message], Any] = claims.begin if kind == "function" else claims.begin_in_task
    with Consumer(group, [topic.name], **options) as consumer:
        running = threading.Thread(target=consumer.run, args=(handler,))
        running.start()
        assert claims.asked_in_vain()
        claims.certain = True
        assert claims.have_let_all_begin()
        consumer.stop()
        running.join(LONGEST)
    assert not running.is_alive()
