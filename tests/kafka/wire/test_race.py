"""Several attempts at a time: the first success counts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from zkgroups.exceptions import AuthenticationError
from zkgroups.kafka.wire.errors import NotSentError
from zkgroups.kafka.wire.race import first_of

from .conftest import run

NEVER = None


def race(outcomes: Mapping[str, BaseException | str | None]) -> tuple[str, list[str], list[str]]:
    """The winner, or the error; the attempts that began; the cancelled attempts."""
    begun: list[str] = []
    cancelled: list[str] = []

    async def attempt(candidate: str) -> str:
        begun.append(candidate)
        outcome = outcomes[candidate]
        try:
            if outcome is NEVER:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(candidate)
            raise
        if isinstance(outcome, BaseException):
            raise outcome
        return str(outcome)

    async def use() -> str:
        try:
            return await first_of(outcomes, attempt)
        except (NotSentError, AuthenticationError) as error:
            return f"{type(error).__name__}: {error}"

    return run(use()), begun, cancelled


def test_the_first_success_counts_and_others_are_cancelled() -> None:
    assert race({"a": NEVER, "b": NotSentError("b is away"), "c": "c", "d": "d"}) == ("c", ["a", "b", "c"], ["a"])


def test_all_reasons_are_named_if_nothing_succeeds() -> None:
    assert race({"a": NotSentError("a is away"), "b": NotSentError("b is away")})[0] == (
        "NotSentError: a is away; b is away"
    )


def test_a_permanent_error_is_not_held_up_by_those_who_never_answer() -> None:
    found, _, cancelled = race({"a": NEVER, "b": AuthenticationError("wrong password"), "c": NEVER})
    assert found == "AuthenticationError: wrong password"
    assert cancelled == ["a"]


def test_a_success_shortly_after_a_permanent_error_counts() -> None:
    async def use() -> str:
        async def attempt(candidate: str) -> str:
            if candidate == "b":
                raise AuthenticationError("no")
            await asyncio.sleep(0.3)
            return candidate

        return await first_of(["a", "b"], attempt)

    assert run(use()) == "a"


def test_only_some_attempts_run_at_a_time() -> None:
    async def use() -> int:
        most = running = 0

        async def attempt(_: int) -> int:
            nonlocal most, running
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.6)
            running -= 1
            raise NotSentError("away")

        with pytest.raises(NotSentError):
            await first_of(range(6), attempt)
        return most

    assert 1 < run(use()) <= 4
