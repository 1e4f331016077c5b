"""Locks on the targets of migrations: one plan at a time, gone with the session of its holder."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from kazoo.security import make_acl

from tests.testing.waiting import eventually
from zkgroups import Registry
from zkgroups.exceptions import ConflictError
from zkgroups.testing import expire_session
from zkgroups.zookeeper import locks

from .conftest import Connect

pytestmark = pytest.mark.zookeeper

TARGETS = "/zkgroups/targets"


def take(registry: Registry, *targets: str, plan: str = "p1", cluster: str | None = "c") -> dict[str, Any]:
    return locks.take(registry.handle, targets, cluster=cluster, plan=plan)


def test_a_target_is_locked_by_one_plan_until_it_lets_go(registry: Registry, raw: Any) -> None:
    assert take(registry, "a", "b", "größe") == {"a": None, "b": None, "größe": None}
    assert take(registry, "a") == {"a": None}, "its own"
    refused = take(registry, "a", "c", plan="p2")
    assert isinstance(refused["a"], ConflictError)
    assert str(refused["a"]) == "plan p1 is writing to 'a': try again later"
    assert refused["c"] is None
    assert take(registry, "a", plan="p2", cluster="other") == {"a": None}
    locks.release(registry.handle, ["a", "c"], cluster="c", plan="p1")
    assert sorted(raw.get_children(TARGETS)) == ["c:b", "c:c", "c:größe", "other:a"]
    assert take(registry, "a", plan="p2") == {"a": None}


def test_a_lock_goes_with_the_session_of_its_holder_and_nobody_else_lets_it_go(
    registry: Registry, connect: Connect, raw: Any
) -> None:
    with connect() as other:
        assert take(other, "a") == {"a": None}
        locks.release(registry.handle, ["a"], cluster="c", plan="p1")
        assert raw.get_children(TARGETS) == ["c:a"]
        expire_session(other.client)
        assert eventually(lambda: take(registry, "a", plan="p2") == {"a": None})


def test_who_may_make_no_locks_goes_on_without_them_and_it_is_logged(
    registry: Registry, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    raw.create("/zkgroups", acl=[make_acl("world", "anyone", read=True)])

    with caplog.at_level(logging.WARNING, "zkgroups"):
        assert take(registry, "a") == {"a": None}

    assert "targets are not locked against other plans: no permission on /zkgroups" in caplog.text
