"""Locks on the targets of migrations: one plan at a time, released when the session of the holder expires."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from kazoo.security import make_acl

from tests.testing.waiting import eventually
from zkgroups import Registry
from zkgroups.exceptions import ConflictError, InvalidNameError, OutcomeUnknownError
from zkgroups.testing import expire_session
from zkgroups.zookeeper.admin.migration_target_locks import MigrationTargetLocks
from zkgroups.zookeeper.requests.transaction import Create, Delete, Operation
from zkgroups.zookeeper.session.session import Session

from .conftest import Connect

pytestmark = pytest.mark.zookeeper

TARGETS = "/zkgroups/targets"


def take(registry: Registry, *targets: str, plan: str = "p1", cluster: str | None = "c") -> dict[str, Any]:
    return MigrationTargetLocks(registry._context, cluster=cluster, plan=plan).take(targets)


def test_a_target_is_locked_by_one_plan_until_the_plan_releases_it(registry: Registry, raw: Any) -> None:
    assert take(registry, "a", "b", "größe") == {"a": None, "b": None, "größe": None}
    assert take(registry, "a") == {"a": None}, "its own"
    refused = take(registry, "a", "c", plan="p2")
    assert isinstance(refused["a"], ConflictError)
    assert str(refused["a"]) == "plan p1 is writing to 'a': try again later"
    assert refused["c"] is None
    assert take(registry, "a", plan="p2", cluster="other") == {"a": None}
    MigrationTargetLocks(registry._context, cluster="c", plan="p1").release(["a", "c"])
    assert sorted(raw.get_children(TARGETS)) == ["c:b", "c:c", "c:größe", "other:a"]
    assert take(registry, "a", plan="p2") == {"a": None}


def test_a_lock_is_deleted_with_the_session_of_its_holder_and_only_the_holder_releases_it(
    registry: Registry, connect: Connect, raw: Any
) -> None:
    with connect() as other:
        assert take(other, "a") == {"a": None}
        MigrationTargetLocks(registry._context, cluster="c", plan="p1").release(["a"])
        assert raw.get_children(TARGETS) == ["c:a"]
        expire_session(other.client)
        assert eventually(lambda: take(registry, "a", plan="p2") == {"a": None})


@pytest.mark.parametrize("lost", [Create, Delete])
def test_a_lock_that_could_not_be_released_does_not_stop_the_next_run_in_the_same_session(
    registry: Registry, connect: Connect, raw: Any, monkeypatch: pytest.MonkeyPatch, lost: type[Operation]
) -> None:
    """The connection was lost while the lock was taken, or before it was released."""
    transact = Session.transact

    def fail(self: Session, operations: Any, **options: Any) -> Any:
        if not isinstance(operations[0], lost):
            return transact(self, operations, **options)
        if lost is Create:
            transact(self, operations, **options)
        raise OutcomeUnknownError("the connection was lost")

    apply = MigrationTargetLocks(registry._context, cluster="c", plan="p1")
    take(registry, "other")  # creates the directory
    with monkeypatch.context() as patched:
        patched.setattr(Session, "transact", fail)
        if lost is Delete:
            apply.take(["a"])
        with pytest.raises(OutcomeUnknownError):
            (apply.take if lost is Create else apply.release)(["a"])
    assert "c:a" in raw.get_children(TARGETS)
    rollback = MigrationTargetLocks(registry._context, cluster="c", plan="p1", rollback=True)
    with connect() as other:
        assert isinstance(take(other, "a", plan="p2")["a"], ConflictError)
    assert rollback.take(["a"]) == {"a": None}
    assert (rollback.lost(["a"]), isinstance(take(registry, "a")["a"], ConflictError)) == ([], True)
    rollback.release(["a"])
    assert take(registry, "a") == {"a": None}
    assert isinstance(rollback.take(["a"])["a"], ConflictError)


def test_without_permission_to_create_locks_a_plan_continues_without_them_and_logs_it(
    registry: Registry, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    raw.create("/zkgroups", acl=[make_acl("world", "anyone", read=True)])

    with caplog.at_level(logging.WARNING, "zkgroups"):
        assert take(registry, "a") == {"a": None}

    assert "targets a are not locked (no permission on /zkgroups/targets: log in" in caplog.text
    assert "run no other plan that writes to them" in caplog.text


def test_a_lock_of_an_earlier_session_of_the_plan_is_replaced_and_survives_that_session(
    registry: Registry, connect: Connect, raw: Any
) -> None:
    with connect() as first:
        of_first = MigrationTargetLocks(first._context, cluster="c", plan="p1")
        assert of_first.take(["a", "b"]) == {"a": None, "b": None}
        of_registry = MigrationTargetLocks(registry._context, cluster="c", plan="p1")
        assert of_registry.take(["a"]) == {"a": None}
        assert (of_first.lost(["a", "b", "never"]), of_registry.lost(["a", "b"])) == (["a"], [])
        of_first.release(["a"])
    assert eventually(lambda: raw.get_children(TARGETS) == ["c:a"])
    assert isinstance(take(registry, "a", plan="p2")["a"], ConflictError)
    assert of_registry.take(["a"]) == {"a": None}
    assert of_registry.lost(["a"]) == []


def test_a_lock_that_was_recreated_meanwhile_counts_as_lost(registry: Registry, raw: Any) -> None:
    locks = MigrationTargetLocks(registry._context, cluster="c", plan="p1")
    locks.take(["a"])
    raw.delete(f"{TARGETS}/c:a")
    assert locks.lost(["a"]) == ["a"]
    assert take(registry, "a") == {"a": None}
    assert locks.lost(["a"]) == ["a"]


def test_a_lock_without_a_session_has_no_holder(registry: Registry, raw: Any) -> None:
    raw.create(f"{TARGETS}/c:a", b"by hand \xff", makepath=True)
    assert take(registry, "a") == {"a": None}
    assert raw.get(f"{TARGETS}/c:a")[1].ephemeralOwner == registry._context.session.id


def test_only_the_target_with_an_impossible_name_is_refused(registry: Registry) -> None:
    found = take(registry, "a/b", "b")
    assert isinstance(found["a/b"], InvalidNameError)
    assert found["b"] is None
