"""Messages of two partitions, and what workers do with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from zkgroups.core.delivery.delivery import Delivery
from zkgroups.core.delivery.failure_policy import FailurePolicy
from zkgroups.core.delivery.lane import Run
from zkgroups.core.delivery.order import Order
from zkgroups.core.znodes.topic_partition import TopicPartition

AT, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
RETRY = FailurePolicy(attempts=3, first_delay=1.0)


class Message(NamedTuple):
    at: TopicPartition
    offset: int
    key: bytes | None = None

    def place(self) -> tuple[TopicPartition, int]:
        return self.at, self.offset


def delivery_of(
    order: Order = Order.PARTITION, policy: FailurePolicy = RETRY, *, window: int = 100
) -> Delivery[Message]:
    delivery: Delivery[Message] = Delivery(order, policy, window=window)
    for at in (AT, OTHER):
        delivery.assign(at, 0)
    return delivery


def add(delivery: Delivery[Message], *offsets: int, at: TopicPartition = AT, key: bytes | None = None) -> None:
    delivery.add(at, [(offset, Message(at, offset, key)) for offset in offsets], [key] * len(offsets))


def taken(delivery: Delivery[Message], most: int = 200) -> Run[Message]:
    run = delivery.take(most)
    assert run is not None
    return run


def offsets_of(run: Run[Message]) -> list[int]:
    return [offset for offset, _message in run.messages]


def handle(run: Run[Message], delivery: Delivery[Message]) -> None:
    """Handle all messages of a run."""
    for _message in run:
        pass
    delivery.end(run)


def position(delivery: Delivery[Message], at: TopicPartition = AT) -> int:
    return delivery.positions([at])[at]


def fail_at(run: Run[Message], offset: int) -> None:
    """Handle the messages of a run until the one with this offset."""
    for message in run:
        if message.offset == offset:
            return
    raise AssertionError(f"{offset} is not in the run")


def add_keys(delivery: Delivery[Message], keys: str) -> None:
    """Add a message for each letter, with the letter as its key."""
    for offset, key in enumerate(keys):
        add(delivery, offset, key=key.encode())


def begin(delivery: Delivery[Message]) -> tuple[Run[Message], Iterator[Message]]:
    """Begin the first message of a run."""
    run = taken(delivery)
    messages = iter(run)
    next(messages)
    return run, messages


def finish(begun: tuple[Run[Message], Iterator[Message]], delivery: Delivery[Message]) -> list[int]:
    """Finish the message under way, and those that the run still begins. Return the offsets of the latter."""
    run, messages = begun
    others = [message.offset for message in messages]
    delivery.end(run)
    return others
