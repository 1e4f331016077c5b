"""When a failed step is retried, and which errors the caller gets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from zkgroups.consumer.callbacks import Callbacks
from zkgroups.consumer.events import MemberStats
from zkgroups.consumer.step_failures import StepFailure, StepFailures
from zkgroups.core.rebalance.actions import ReadGroup, RegisterInstance

JOIN_BACKOFF = 0.3
READ, REGISTER = ReadGroup(turn=1), RegisterInstance(turn=1)


class Scene:
    """The failures of one member, and what its caller got."""

    def __init__(self) -> None:
        options: Any = SimpleNamespace(on_event=None, join_backoff=JOIN_BACKOFF)
        self.stats, self.handed_out = MemberStats(), list[StepFailure]()
        callbacks = Callbacks("'anna'", options, lambda: 1, lambda _result: None)
        self.failures = StepFailures(options, self.stats, callbacks, self.handed_out.append)

    def failed(self, step: Any, error: Exception, *, retriable: bool) -> float:
        return self.failures.failed(step, error, retriable=retriable, trace=False)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_the_pause_doubles_with_each_failure_in_a_row_up_to_a_limit(scene: Scene) -> None:
    pauses = [scene.failed(READ, OSError("x"), retriable=True) for _ in range(5)]
    assert pauses == [0.05, 0.1, 0.2, JOIN_BACKOFF, JOIN_BACKOFF]
    scene.failures.worked(READ)
    assert scene.failed(READ, OSError("x"), retriable=True) == 0.05
    assert (scene.stats.failures, scene.handed_out) == (6, [])


def test_an_error_that_a_retry_does_not_resolve_is_handed_out_once_and_the_last_one_counts(scene: Scene) -> None:
    assert scene.failed(REGISTER, OSError("one"), retriable=False) == JOIN_BACKOFF
    scene.failed(REGISTER, OSError("two"), retriable=False)
    [found] = scene.handed_out
    assert (str(found.error), found.over) == ("two", False)


def test_an_error_is_over_only_when_its_own_step_has_succeeded(scene: Scene) -> None:
    scene.failed(REGISTER, OSError("one"), retriable=False)
    [found] = scene.handed_out
    scene.failures.worked(READ)
    assert not found.over
    scene.failures.worked(REGISTER)
    assert found.over
    scene.failed(REGISTER, OSError("two"), retriable=False)
    assert [str(each.error) for each in scene.handed_out] == ["one", "two"]
