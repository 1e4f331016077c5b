"""Failure 11: a late commit is refused, and an offset never goes back by itself, in any order of joins, claims,
commits, expired sessions and administrative releases. Hypothesis compares a real server with a model."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from zkgroups import Claim, Consumergroup, Instance, Registry, TopicPartition
from zkgroups.exceptions import (
    AlreadyClaimedError,
    AlreadyRegisteredError,
    ClaimedByOtherError,
    GroupInUseError,
    GuardFailedError,
    NotClaimedError,
    NotRegisteredError,
    OffsetConflictError,
    OffsetWouldGoBackError,
    SessionLostError,
)

from .events import expire

pytestmark = pytest.mark.zookeeper

MEMBERS = ("a", "b")
PARTITIONS = tuple(TopicPartition("t", n) for n in range(2))

members = st.sampled_from(MEMBERS)
partitions = st.sampled_from(PARTITIONS)


class Interleavings(RuleBasedStateMachine):
    """Two members, each with its own session, two partitions, and an administrator. The model is the expected state
    of ZooKeeper."""

    registries: dict[str, Registry]
    observer: Registry

    @initialize()
    def begin(self) -> None:
        self.group: Consumergroup = self.observer.group(f"g-{uuid.uuid4().hex}")
        self.instances: dict[str, Instance] = {
            name: registry.group(self.group.name).instance(name) for name, registry in self.registries.items()
        }
        self.registered: set[str] = set()
        self.lost: set[str] = set()  # their session expired since they registered, and they have not registered again
        self.holder: dict[TopicPartition, str] = {}
        self.claims: list[tuple[str, TopicPartition, Claim]] = []
        self.current: dict[TopicPartition, Claim] = {}
        self.offset: dict[TopicPartition, int] = {}
        self.known: dict[Claim, int | None] = {}  # the committed offset according to a claim, from its first commit on

    @rule(name=members)
    def register(self, name: str) -> None:
        if name in self.registered:
            with pytest.raises(AlreadyRegisteredError):
                self.instances[name].register(["t"])
            return
        self.instances[name].register(["t"])
        self.registered.add(name)
        self.lost.discard(name)

    @rule(name=members)
    def deregister(self, name: str) -> None:
        self.instances[name].deregister()
        self._forget(name)
        self.lost.discard(name)

    @rule(name=members)
    def session_ends(self, name: str) -> None:
        expire(self.registries[name])
        if name in self.registered:
            self.lost.add(name)
        self._forget(name)

    def _forget(self, name: str) -> None:
        self.registered.discard(name)
        self.holder = {at: holder for at, holder in self.holder.items() if holder != name}

    @rule(name=members, at=partitions)
    def claim(self, name: str, at: TopicPartition) -> None:
        holder = self.holder.get(at)
        instance = self.instances[name]
        if name in self.lost:
            with pytest.raises(SessionLostError):
                instance.claim(at)
        elif name not in self.registered:
            with pytest.raises(NotRegisteredError):
                instance.claim(at)
        elif holder == name:
            with pytest.raises(AlreadyClaimedError):
                instance.claim(at)
        elif holder is not None:
            with pytest.raises(ClaimedByOtherError) as caught:
                instance.claim(at)
            assert caught.value.owner.holder.startswith(repr(holder))
        else:
            claim = instance.claim(at)
            self.claims.append((name, at, claim))
            self.current[at] = claim
            self.holder[at] = name

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), step=st.integers(-3, 5), backward=st.booleans())
    def commit(self, data: Any, step: int, backward: bool) -> None:
        name, at, claim = data.draw(st.sampled_from(self.claims))
        offset = max(0, self.offset.get(at, 0) + step)
        if self.holder.get(at) != name or self.current[at] is not claim:
            with pytest.raises((SessionLostError, NotClaimedError, NotRegisteredError, OffsetWouldGoBackError)):
                claim.commit(offset)
            return
        believed = self.known.setdefault(claim, self.offset.get(at))
        if believed is not None and offset < believed and not backward:
            with pytest.raises(OffsetWouldGoBackError):
                claim.commit(offset, backward=backward)
        elif believed != self.offset.get(at):
            with pytest.raises(OffsetConflictError):
                claim.commit(offset, backward=backward)
            del self.known[claim]
        else:
            claim.commit(offset, backward=backward)
            self.offset[at] = self.known[claim] = offset

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def release(self, data: Any) -> None:
        name, at, claim = data.draw(st.sampled_from(self.claims))
        claim.release()
        if self.holder.get(at) == name and self.current[at] is claim:
            del self.holder[at]

    @rule(name=members, at=partitions)
    def administrator_releases(self, name: str, at: TopicPartition) -> None:
        holder = self.holder.get(at)
        if holder == name:
            self.group.release(at, expected_owner=name)
            del self.holder[at]
            return
        with pytest.raises(NotClaimedError if holder is None else GuardFailedError):
            self.group.release(at, expected_owner=name)

    @rule(at=partitions, offset=st.integers(0, 10))
    def administrator_resets(self, at: TopicPartition, offset: int) -> None:
        if self.registered:
            with pytest.raises(GroupInUseError):
                self.group.offsets.reset({at: offset})
            return
        self.group.offsets.reset({at: offset})
        self.offset[at] = offset

    @rule(at=partitions, step=st.integers(1, 3))
    def somebody_commits_without_a_claim(self, at: TopicPartition, step: int) -> None:
        self.offset[at] = self.offset.get(at, 0) + step
        self.group.offsets.set(at, self.offset[at])

    @invariant()
    def zookeeper_is_as_the_model(self) -> None:
        if not hasattr(self, "group"):
            return
        description = self.group.describe()
        assert {p.at: p.instance for p in description.partitions if p.owners} == self.holder
        assert {p.at: p.offset.offset for p in description.partitions if p.offset} == self.offset
        assert {instance.id for instance in description.instances} == self.registered
        for name, at, claim in self.claims:
            assert claim.held <= (claim.session_id == self.registries[name].session_id)
            if claim.verify():
                assert self.holder[at] == name
                assert self.current[at] is claim


def test_failure_11_whatever_an_instance_does_after_the_end_of_its_session_is_refused_as_that(connect: Any) -> None:
    """The shortest order of events, which a random search may not draw."""
    registry = connect()
    instance = registry.group("billing").instance("a")
    instance.register(["t"])
    claim = instance.claim(TopicPartition("t", 0))
    expire(registry)
    with pytest.raises(SessionLostError):
        claim.commit(1)
    with pytest.raises(SessionLostError):
        instance.claim(TopicPartition("t", 1))


def test_failure_11_a_late_commit_is_refused_in_every_order_of_events(connect: Any) -> None:
    Interleavings.observer = connect()
    Interleavings.registries = {name: connect() for name in MEMBERS}
    run_state_machine_as_test(
        Interleavings,
        settings=settings(
            max_examples=25,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )
