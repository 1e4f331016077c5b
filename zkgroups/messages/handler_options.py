"""The options of `Consumer.run`, checked when it is called."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from ..core.delivery.failure_policy import FailurePolicy, LastResort
from ..core.delivery.order import Order
from ..core.znodes.names import check_topic
from ..exceptions import InvalidOptionError

if TYPE_CHECKING:
    from confluent_kafka import Message

Handler: TypeAlias = "Callable[[Message], Awaitable[object] | None]"

MOST_WORKERS: Final = 1_000
"""The most workers. Each is a thread or a task."""

MOST_FETCHED: Final = 500
"""The most messages that are fetched in one step."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A topic for messages that no attempt could handle: `consumer.run(handler, then=DeadLetter("orders-failed"))`.

    The key, the value and the headers of the message stay as they are. More headers say where it came from, why it
    failed, and how often it was tried: see `zkgroups.messages.dead_letters`.
    """

    topic: str

    def __post_init__(self) -> None:
        check_topic(self.topic)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerOptions:
    """How a handler is called.

    - `workers`: how many messages are handled at the same time, by threads, or by tasks if the handler is a coroutine
      function.
    - `order`: "partition", "key" or "none": see `Order`.
    - `window`: the most messages of one partition from the first unfinished one to the last fetched one.
    - `attempts`: how often a message is handled at most.
    - `first_delay`, `longest_delay`: the pause before the second attempt, in seconds. Each pause is twice as long as
      the one before, up to the longest.
    - `then`: what happens after the last attempt. "stop": `run` raises `HandlerFailedError`. "park": the message, and
      all messages that must wait for it, are left alone. `DeadLetter(topic)`: the message is written to that topic.
    """

    workers: int = 1
    order: Order | str = Order.PARTITION
    window: int = 1_000
    attempts: int = 3
    first_delay: float = 0.5
    longest_delay: float = 30.0
    then: Literal["stop", "park"] | DeadLetter = "stop"

    def __post_init__(self) -> None:
        _check_count("workers", self.workers, MOST_WORKERS)
        _check_count("window", self.window, 1_000_000)
        if self.order not in list(Order):
            raise InvalidOptionError("order", self.order, "it must be one of " + ", ".join(Order))
        if not isinstance(self.then, DeadLetter) and self.then not in ("stop", "park"):
            raise InvalidOptionError("then", self.then, 'it must be "stop", "park" or a DeadLetter')
        _ = self.policy

    @property
    def policy(self) -> FailurePolicy:
        """What to do when a handler fails."""
        then = LastResort.DEAD_LETTER if isinstance(self.then, DeadLetter) else LastResort(self.then)
        return FailurePolicy(self.attempts, self.first_delay, self.longest_delay, then)

    @property
    def fetched(self) -> int:
        """The most messages to fetch in one step."""
        return max(1, min(MOST_FETCHED, self.window // 2))

    @property
    def full(self) -> int:
        """How many messages of a partition may be in the window, so that another fetch does not exceed it."""
        return self.window - self.fetched + 1


def is_coroutine_function(handler: object) -> bool:
    """Return True if calling the handler makes a coroutine. Raise `InvalidOptionError` if it cannot be called."""
    if not callable(handler):
        raise InvalidOptionError("handler", handler, "it must be a function")
    called: Any = getattr(handler, "__call__", None)  # noqa: B004  # the method of an object that can be called
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(called)


def _check_count(option: str, value: object, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InvalidOptionError(option, value, f"it must be a whole number between 1 and {most}")
