"""If the connection is lost at any request, everything still happens once.

A script of all work that writes is repeated, and each time the connection is cut at a later request. In the end the
nodes must equal those of an undisturbed run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.zookeeper.tree import Tree, dump
from zkgroups import Registry, TopicPartition
from zkgroups.coordinator import CommittedValue, KafkaError, Subscription
from zkgroups.coordinator.storage.work import (
    PerformAssignment,
    ReleaseMembers,
    StoreGeneration,
    StoreOffsets,
    WorkFailed,
)
from zkgroups.exceptions import OutcomeUnknownError
from zkgroups.gateway.zookeeper_storage import group
from zkgroups.testing import TcpProxy
from zkgroups.zookeeper.requests.transaction import Create
from zkgroups.zookeeper.session.session import Session

from .old_members import create_topic
from .script import PLANNED, Script

pytestmark = pytest.mark.zookeeper

STRIDES = [7, pytest.param(1, marks=pytest.mark.soak)]
"""Each run cuts the connection at one request, and the next run so many requests later."""


def script_of(script: Script) -> Iterator[Any]:
    """Carry out work of every kind. Yield the results after each part."""
    shares = script.generation(1, "a-1", "b-1")
    for offset in (3, 4):
        offsets = dict.fromkeys(shares["a-1"], CommittedValue(offset, "text", 7))
        stored = script.do(StoreOffsets("billing", "a-1", 1, offsets))
    yield shares, stored
    shares = script.generation(2, "a-1", "c-1", "d-1")
    stored = script.do(StoreOffsets("billing", "d-1", 2, dict.fromkeys(shares["d-1"], CommittedValue(9))))
    script.do(ReleaseMembers("billing", ("c-1", "d-1")))
    yield shares, stored, script.generation(3, "a-1")
    script.do(ReleaseMembers("billing", ("a-1",)))
    script.do(StoreGeneration("billing", 4, "consumer", "", "", {}))
    yield script.do(StoreOffsets("billing", "", -1, {TopicPartition("orders", 0): CommittedValue(1, "back")}))


@pytest.mark.parametrize("stride", STRIDES)
def test_everything_happens_once(
    registry: Registry, proxied: Registry, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch, stride: int
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_800_000_000.0)
    create_topic(registry.client, "orders", 6)
    script = Script(proxied)

    def run() -> list[tuple[Any, Tree]]:
        found = [(result, dump(registry.client)) for result in script_of(script)]
        registry.client.delete("/consumers", recursive=True)
        return found

    undisturbed = run()
    for number, cut in ((1, proxy.cut_before_reply), (4, proxy.cut_before_request)):
        while (fault := cut(number)) is not None:
            assert run() == undisturbed, f"{cut.__name__} {number}"
            if not fault.fired:
                break
            number += stride
        assert number > 40
    script.storage.close()


def test_a_claim_with_an_unknown_outcome_blocks_no_other_member(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim of the first member was carried out without a reply. Then the second member gets the partitions."""
    create_topic(registry.client, "orders", 6)
    transact = Session.transact

    def lose_reply(self: Session, operations: Any, **options: Any) -> Any:
        found = transact(self, operations, **options)
        if any(isinstance(each, Create) and "/owners/orders/" in each.path for each in operations):
            raise OutcomeUnknownError("the reply was lost")
        return found

    script = Script(registry)
    with monkeypatch.context() as patched:
        patched.setattr(Session, "transact", lose_reply)
        patched.setattr(group, "may_try_again", lambda *_: False)
        assert script.ask(PerformAssignment("billing", 1, "range", {"a-1": PLANNED})) == WorkFailed(
            KafkaError.COORDINATOR_NOT_AVAILABLE
        )
    without_topics = replace(PLANNED, subscription=Subscription(frozenset()))
    shares = script.assign(2, {"a-1": without_topics, "b-1": PLANNED})
    assert {id: len(share) for id, share in shares.items()} == {"a-1": 0, "b-1": 6}
    script.storage.close()
