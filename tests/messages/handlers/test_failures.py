"""Messages are handled in order, by threads and by tasks. Attempts, and what happens after the last one."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest
from confluent_kafka import Message

from tests.waiting import eventually
from zkgroups.exceptions import HandlerFailedError, InvalidOptionError
from zkgroups.messages.dead_letters import DeadLetterWriter, headers
from zkgroups.messages.runs import HandlerOptions, Letter
from zkgroups.testing import HandlerHarness

from .running import (
    AT,
    FAILED,
    LONG,
    OTHER,
    Blocking,
    Clock,
    LateLetters,
    add_keys,
    idle,
    messages,
    running,
    wait_until,
)


@pytest.mark.parametrize("with_tasks", [False, True])
def test_workers_handle_other_keys_at_the_same_time(with_tasks: bool) -> None:
    """Each handler waits until both are under way."""
    both = threading.Barrier(2, timeout=60)

    async def with_task(_message: Message) -> None:
        await asyncio.to_thread(both.wait)

    def with_thread(_message: Message) -> None:
        both.wait()

    handler: Any = with_task if with_tasks else with_thread
    harness = HandlerHarness(handler, order="key", workers=2, attempts=1)
    harness.send("orders", b"", key=b"anna")
    harness.send("orders", b"", key=b"ben")

    assert harness.run().committed == {AT: 2}


class Refusing:
    """A handler that fails at some offsets, a number of times each."""

    def __init__(self, **failures: int) -> None:
        self.left = {int(offset.removeprefix("at_")): times for offset, times in failures.items()}
        self.handled: list[int] = []

    def __call__(self, message: Message) -> None:
        offset = message.offset() or 0
        if self.left.get(offset, 0) > 0:
            self.left[offset] -= 1
            raise ValueError(f"not {offset}")
        self.handled.append(offset)


# Attempts


def test_a_message_is_handled_again_when_its_pause_is_over_and_not_before() -> None:
    clock, handler = Clock(), Refusing(at_0=1)
    with running(handler, clock=clock, first_delay=100.0, longest_delay=100.0) as runner:
        runner.runs.add(AT, messages(0, 1))
        idle(runner)
        clock.now = 99.0
        runner.look_at_clock()
        idle(runner)
        assert handler.handled == []
        clock.now = 100.0
        runner.look_at_clock()
        wait_until(lambda: handler.handled == [0, 1])


def test_a_failed_message_is_not_handled_again_while_the_claims_are_uncertain() -> None:
    claims, clock, handler = [True], Clock(), Refusing(at_0=1)
    with running(handler, clock=clock, first_delay=1.0, alive=lambda: claims[0]) as runner:
        runner.runs.add(AT, messages(0))
        idle(runner)
        claims[0], clock.now = False, 1.0
        with runner.runs.lock:
            assert runner.runs.take() is None
            assert runner.runs.pause, "a worker must not ask again and again"
        runner.look_at_clock()
        claims[0] = True
        wait_until(lambda: handler.handled == [0])


def test_an_idle_worker_handles_a_message_again_if_the_worker_that_failed_is_busy() -> None:
    """It has been idle since before there was a pause."""
    handler, blocked = Refusing(at_0=1), Blocking()

    def handle(message: Message) -> None:
        if message.partition() == 1:
            blocked(message)
            return
        if handler.left[0]:
            with runs.lock:  # no other worker hears of the message that this one takes next
                runs._delivery.add(OTHER, [(0, messages(0, at=OTHER)[0])])
        handler(message)

    with blocked.ended(), running(handle, workers=2, first_delay=0.05) as runner:
        runs = runner.runs
        runs.add(AT, messages(0))
        wait_until(lambda: handler.handled == [0])
        wait_until(lambda: blocked.begun == 1)


# Stop


def test_stop_raises_the_last_error_and_commits_up_to_the_message() -> None:
    harness = HandlerHarness(Refusing(at_1=3), attempts=3)
    for _ in range(3):
        harness.send("orders", b"")
    outcome = harness.run()

    assert isinstance(outcome.error, HandlerFailedError)
    assert (outcome.error.at, outcome.error.offset, outcome.error.attempts) == (AT, 1, 3)
    assert isinstance(outcome.error.__cause__, ValueError)
    assert outcome.committed == {AT: 1}
    assert [message.offset() for message in outcome.handled] == [0]


def test_everything_before_a_message_that_has_failed_is_handled_before_the_end() -> None:
    blocked, handled = Blocking(), list[int]()

    def handle(message: Message) -> None:
        if message.offset() == 3:
            raise ValueError("no")
        if message.offset() == 0:
            blocked(message)
        handled.append(message.offset() or 0)

    with blocked.ended(), running(handle, workers=2, order="key", attempts=1) as runner:
        add_keys(runner.runs, b"anna", b"anna", b"ben", b"carl", b"anna", b"dora")
        wait_until(lambda: runner.runs.failure is not None)
        runner.runs.add(OTHER, messages(0, at=OTHER))
        blocked.let_return()
        runner.runs.drain(LONG)
        assert runner.runs.positions() == {AT: 3, OTHER: 0}
    assert handled == [2, 0, 1]


def test_after_an_error_that_ends_programs_no_message_is_begun() -> None:
    blocked, handled = Blocking(), list[int]()

    def handle(message: Message) -> None:
        if message.offset() == 3:
            raise SystemExit
        if message.offset() == 0:
            blocked(message)
        handled.append(message.offset() or 0)

    with blocked.ended(), running(handle, workers=2, order="key") as runner:
        add_keys(runner.runs, b"anna", b"anna", b"ben", b"carl")
        wait_until(lambda: runner.runs.failure is not None)
        blocked.let_return()
        runner.runs.drain(LONG)
        assert runner.runs.positions([AT]) == {AT: 1}
    assert handled == [2, 0]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_an_error_that_ends_programs_stops_at_once(error: BaseException) -> None:
    def handle(message: Message) -> None:
        if message.offset() == 1:
            raise error

    async def handle_async(message: Message) -> None:
        handle(message)

    handlers: list[Any] = [handle, handle_async]
    for handler in handlers:
        harness = HandlerHarness(handler, then="park")
        for _ in range(3):
            harness.send("orders", b"")
        outcome = harness.run()

        assert outcome.error is error
        assert outcome.pauses == []
        assert outcome.committed == {AT: 1}


def test_a_function_that_returns_a_coroutine_is_refused_and_nothing_is_committed() -> None:
    """Its coroutine would never run, so the messages would be lost."""

    async def handle(_message: Message) -> None:
        raise AssertionError("nobody runs this")

    harness = HandlerHarness(lambda message: handle(message), then="park")
    harness.send("orders", b"")
    outcome = harness.run()

    assert isinstance(outcome.error, InvalidOptionError)
    assert outcome.committed == {AT: 0}


# Park


# Dead letters


class Broken(LateLetters):
    """Raises an error at once."""

    def write(self, *_arguments: object) -> None:
        raise RuntimeError("too large")


@pytest.mark.parametrize("letters", [LateLetters(), Broken()], ids=["later", "at once"])
def test_a_dead_letter_that_is_refused_stays_behind(caplog: pytest.LogCaptureFixture, letters: LateLetters) -> None:
    handler = Refusing(at_0=1)
    with running(handler, letters, attempts=1, then=FAILED) as runner, caplog.at_level(logging.ERROR):
        runner.runs.add(AT, messages(0, 1))
        if not isinstance(letters, Broken):
            wait_until(lambda: len(letters.sent) == 1)
            letters.confirm(RuntimeError("too large"))
        wait_until(lambda: runner.runs.parked() == {AT: [0]})
        assert runner.runs.positions([AT]) == {AT: 0}
        assert "the dead letter of orders/0:0 was refused" in caplog.text
        assert runner.runs.stats().dead_letters == 0
        assert handler.handled == []


def test_a_confirmation_that_never_comes_leaves_the_message_to_the_next_consumer() -> None:
    letters = LateLetters()
    with running(Refusing(at_0=1), letters, attempts=1, then=FAILED) as runner:
        runner.runs.add(AT, messages(0))
        wait_until(lambda: len(letters.sent) == 1)
        runner.runs.drain(0.01)

        assert runner.runs.positions([AT]) == {AT: 0}
    assert letters.closed


# Options


@pytest.mark.parametrize(
    "options",
    [
        {"workers": 0},
        {"workers": True},
        {"window": 0},
        {"order": "topic"},
        {"attempts": 0},
        {"then": "ignore"},
        {"then": "dead_letter"},
        {"first_delay": 60.0},
    ],
)
def test_an_impossible_option_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptionError):
        HandlerOptions(**options)


def test_a_consumer_does_not_handle_its_own_dead_letters() -> None:
    harness = HandlerHarness(Refusing(), then=FAILED)
    harness.send(FAILED.topic, b"")
    with pytest.raises(InvalidOptionError, match="its own letters"):
        harness.run()


@pytest.mark.parametrize("handler", [None, "handle", 3])
def test_a_handler_that_cannot_be_called_is_refused(handler: Any) -> None:
    with pytest.raises(InvalidOptionError):
        HandlerHarness(handler).run()


def test_a_coroutine_that_cancels_itself_has_failed() -> None:
    calls: list[int] = []

    async def handle(_message: Message) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise asyncio.CancelledError

    harness = HandlerHarness(handle, attempts=2)
    harness.send("orders", b"")
    assert harness.run().committed == {AT: 1}
    assert len(calls) == 2


def letter(error: BaseException, **more: object) -> Letter:
    return Letter(Message(topic="orders", partition=0, offset=7, **more), AT, 7, 3, error)  # type: ignore[arg-type]


def test_the_headers_of_the_message_come_first_and_its_origin_is_added() -> None:
    found = headers(letter(ValueError("no amount"), headers=[("trace", b"1"), ("empty", None)]), "billing")
    assert found == [
        ("trace", b"1"),
        ("empty", None),
        ("zkgroups.topic", b"orders"),
        ("zkgroups.partition", b"0"),
        ("zkgroups.offset", b"7"),
        ("zkgroups.group", b"billing"),
        ("zkgroups.attempts", b"3"),
        ("zkgroups.error", b"ValueError: no amount"),
    ]


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (ValueError("\udcff \N{SNOWMAN}"), "ValueError: \\udcff \N{SNOWMAN}"),
        (ValueError("x" * 5_000), "ValueError: " + "x" * 988),
        (ValueError(), "ValueError"),
    ],
)
def test_any_error_fits_into_a_header(error: Exception, shown: str) -> None:
    assert dict(headers(letter(error), "billing"))["zkgroups.error"] == shown.encode()


def test_while_brokers_are_down_each_kind_of_error_is_one_warning_and_the_client_logs_at_debug(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)

    def logged(name: str) -> list[logging.LogRecord]:
        return [each for each in caplog.records if each.name == name]

    writer = DeadLetterWriter({"bootstrap.servers": "127.0.0.1:1"}, "failed", "billing")
    try:
        writer.write(letter(ValueError()), lambda _error: None)
        assert eventually(lambda: len(logged("zkgroups.librdkafka")) > 10)
        assert eventually(lambda: any(each.levelno > logging.DEBUG for each in logged("zkgroups.consumer")))
    finally:
        writer.close()
    assert {each.levelno for each in logged("zkgroups.librdkafka")} == {logging.DEBUG}
    warned = [each.getMessage() for each in logged("zkgroups.consumer") if each.levelno > logging.DEBUG]
    assert 1 <= len(warned) <= 4
    start = "dead letters of group 'billing' cannot be written to 'failed' now, trying again: "
    assert all(text.startswith(start) for text in warned)
    assert capfd.readouterr().err == ""
