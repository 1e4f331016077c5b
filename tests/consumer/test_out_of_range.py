"""Offsets outside of the log, and the policy that moves them."""

from __future__ import annotations

from typing import Any

import pytest

from zkgroups import Consumergroup, EventKind, Generation, Registry, StartAt, TopicPartition
from zkgroups.core.offsets import start_offset
from zkgroups.exceptions import (
    CommittedOutOfRangeError,
    GenerationEndedError,
    InvalidOptionError,
    NotClaimedError,
    OffsetWouldGoBackError,
    PastLogEndError,
)

from .conftest import Run, Running, plant_topic

pytestmark = pytest.mark.zookeeper


P0, P1, P5 = (TopicPartition("orders", number) for number in (0, 1, 5))
Partitions = frozenset[TopicPartition]


# A committed offset outside of the log


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second reading of the log counts at once."""
    monkeypatch.setattr(start_offset, "CONFIRM_AFTER", 0.0)


def start_of(generation: Generation, at: TopicPartition, log_start: int, log_end: int) -> int:
    """Return where to start if a second reading shows the same log."""
    with pytest.raises(PastLogEndError):
        generation.start_offset(at, log_start=log_start, log_end=log_end)
    return generation.start_offset(at, log_start=log_start, log_end=log_end)


def after_a_log_made_anew(group: Consumergroup, registry: Registry) -> None:
    plant_topic(registry.client, "orders", 2)
    group.offsets.set(P0, 5_558)
    group.offsets.set(P1, 7)


@pytest.mark.parametrize(("policy", "chosen"), [("earliest", 3), ("latest", 20)])
def test_out_of_range_moves_an_offset_past_the_end_of_the_log_once_and_reports_it_once(
    run: Run,
    group: Consumergroup,
    registry: Registry,
    caplog: pytest.LogCaptureFixture,
    policy: str,
    chosen: int,
    at_once: None,
) -> None:
    after_a_log_made_anew(group, registry)
    one = run(out_of_range=policy).until_holding(P0, P1)
    generation = one.generations[-1]
    assert start_of(generation, P0, 3, 20) == generation.start_offset(P0, log_start=3, log_end=20) == chosen
    assert generation.start_offset(P1, log_start=3, log_end=20) == 7
    assert generation.marked == {P0: chosen}  # it is committed even if there is nothing to read
    generation.mark(P0, chosen + 1)
    generation.commit()
    assert {at: group.offsets.fetch(at).offset for at in (P0, P1)} == {P0: chosen + 1, P1: 7}  # type: ignore[union-attr]
    with pytest.raises(OffsetWouldGoBackError):
        generation.commit({P0: chosen})
    with pytest.raises(OffsetWouldGoBackError):
        generation.commit({P1: 6})
    one.close()
    [event] = [event for event in one.events if event.kind is EventKind.RESET]
    assert event.at == {P0}
    assert event.detail == f"committed offset 5558 is outside of the log (3 to 20); starting at {chosen}"
    [logged] = [record for record in caplog.records if "5558" in record.getMessage()]
    assert (logged.levelname, logged.name) == ("WARNING", "zkgroups.member")


def test_an_offset_moves_back_only_from_a_value_outside_of_the_log(
    run: Run, group: Consumergroup, registry: Registry, at_once: None
) -> None:
    after_a_log_made_anew(group, registry)
    one = run(out_of_range="earliest").until_holding(P0, P1)
    one.expect(OffsetWouldGoBackError)
    generation = one.generations[-1]
    start_of(generation, P0, 0, 20)
    registry.client.set("/consumers/billing/offsets/orders/0", b"6000")  # by another client, since then
    with pytest.raises(OffsetWouldGoBackError):
        generation.commit()
    assert group.offsets.fetch(P0).offset == 6_000  # type: ignore[union-attr]


def test_the_next_generation_begins_at_the_offset_that_was_moved_back(
    run: Run, group: Consumergroup, registry: Registry, at_once: None
) -> None:
    after_a_log_made_anew(group, registry)

    def work(generation: Generation) -> None:
        generation.mark(P0, start_of(generation, P0, 0, 20) + 5)
        generation.wait()

    with Running(group, ["orders"], work=work, out_of_range="earliest") as first:
        first.until(lambda: first.generations and first.generations[-1].marked == {P0: 5})
    assert run(out_of_range="error").until_holding(P0, P1).generations[-1].partitions == {P0: 5, P1: 7}


def test_without_a_policy_an_offset_outside_of_the_log_is_an_error_that_names_the_option(
    run: Run, group: Consumergroup, registry: Registry
) -> None:
    after_a_log_made_anew(group, registry)

    def work(generation: Generation) -> None:
        generation.start_offset(P0, log_start=0, log_end=20)

    one = run(work=work)
    error = one.until_error(CommittedOutOfRangeError)
    assert (error.group, error.at, error.committed, error.start, error.end) == ("billing", P0, 5_558, 0, 20)
    assert 'pass out_of_range="earliest" or "latest"' in str(error)
    assert "`zkgroups offsets reset billing`" in str(error)
    assert group.offsets.fetch(P0).offset == 5_558  # type: ignore[union-attr]


def test_a_mark_below_the_committed_offset_is_refused_at_once(
    run: Run, group: Consumergroup, registry: Registry
) -> None:
    after_a_log_made_anew(group, registry)
    generation = run().until_holding(P0, P1).generations[-1]
    with pytest.raises(OffsetWouldGoBackError, match="start_offset"):
        generation.mark(P0, 1)
    assert generation.marked == {}


@pytest.mark.parametrize("start_at", list(StartAt))
def test_without_a_committed_offset_start_at_chooses_an_offset_of_the_log(
    run: Run, orders: Partitions, start_at: StartAt
) -> None:
    generation = run(start_at=start_at).until_holding(orders).generations[-1]
    expected = {StartAt.EARLIEST: 3, StartAt.LATEST: 20}[start_at]
    assert generation.start_offset(P0, log_start=3, log_end=20) == expected
    assert generation.marked == {}


@pytest.mark.parametrize(("log_start", "log_end"), [(5, 4), (-1001, 4), ("0", 4)])
def test_an_impossible_log_range_is_refused(run: Run, orders: Partitions, log_start: Any, log_end: Any) -> None:
    generation = run().until_holding(orders).generations[-1]
    with pytest.raises(InvalidOptionError):
        generation.start_offset(P0, log_start=log_start, log_end=log_end)
    with pytest.raises(NotClaimedError):
        generation.start_offset(TopicPartition("refunds", 0), log_start=0, log_end=1)


# Asked again in one generation


def only_generation(one: Running) -> Generation:
    return one.until_holding(P0, P1).generations[-1]


@pytest.mark.parametrize("policy", ["earliest", "latest", "error"])
@pytest.mark.parametrize("committed", [True, False])
def test_start_offset_returns_the_position_of_the_generation_at_every_call(
    run: Run, group: Consumergroup, registry: Registry, policy: str, committed: bool
) -> None:
    plant_topic(registry.client, "orders", 2)
    group.offsets.set(P0, 5_000)
    generation = only_generation(run(out_of_range=policy))
    assert generation.start_offset(P0, log_start=4_000, log_end=9_000) == 5_000
    generation.mark(P0, 7_000)
    if committed:
        generation.commit()
    assert generation.start_offset(P0, log_start=6_000, log_end=10_000) == 7_000
    generation.commit()
    assert group.offsets.fetch(P0).offset == 7_000  # type: ignore[union-attr]


def test_without_a_committed_offset_the_latest_offset_is_chosen_once(
    run: Run, group: Consumergroup, registry: Registry
) -> None:
    plant_topic(registry.client, "orders", 2)
    generation = only_generation(run(start_at="latest"))
    asked = [
        generation.start_offset(P0, log_start=start, log_end=end) for start, end in [(0, 100), (0, 900), (600, 900)]
    ]
    assert asked == [100, 100, 600]
    assert generation.marked == {}
    generation.mark(P0, 650)
    assert generation.start_offset(P0, log_start=600, log_end=900) == 650


@pytest.mark.parametrize(("policy", "chosen"), [("earliest", 8_000), ("latest", 10_000)])
def test_a_mark_below_the_log_start_only_moves_forward(
    run: Run, group: Consumergroup, registry: Registry, policy: str, chosen: int
) -> None:
    plant_topic(registry.client, "orders", 2)
    group.offsets.set(P0, 5_000)
    one = run(out_of_range=policy)
    generation = only_generation(one)
    generation.mark(P0, 7_000)
    assert generation.start_offset(P0, log_start=8_000, log_end=10_000) == chosen
    generation.mark(P0, 7_100)  # of a message that was fetched before
    assert generation.marked == {P0: chosen}
    one.close()
    [event] = [event for event in one.events if event.kind is EventKind.RESET]
    assert event.detail == f"marked offset 7000 is outside of the log (8000 to 10000); starting at {chosen}"


# How far an offset may go back


def test_a_move_forward_does_not_permit_a_later_move_back(run: Run, group: Consumergroup, registry: Registry) -> None:
    plant_topic(registry.client, "orders", 2)
    group.offsets.set(P0, 5_000)
    generation = only_generation(run(out_of_range="earliest"))
    assert generation.start_offset(P0, log_start=8_000, log_end=9_000) == 8_000
    with pytest.raises(OffsetWouldGoBackError):
        generation.commit({P0: 100})
    generation.commit()
    assert group.offsets.fetch(P0).offset == 8_000  # type: ignore[union-attr]


def test_an_offset_moves_back_no_further_than_the_policy_chose(
    run: Run, group: Consumergroup, registry: Registry, at_once: None
) -> None:
    plant_topic(registry.client, "orders", 2)
    group.offsets.set(P0, 5_000)
    generation = only_generation(run(out_of_range="earliest"))
    assert start_of(generation, P0, 3_000, 4_000) == 3_000
    with pytest.raises(OffsetWouldGoBackError):
        generation.commit({P0: 1})
    with pytest.raises(OffsetWouldGoBackError):
        generation.mark(P0, 1)
    generation.commit()
    assert group.offsets.fetch(P0).offset == 3_000  # type: ignore[union-attr]


# A log end that may be stale


def test_a_log_end_read_before_the_last_commit_moves_nothing(
    run: Run, group: Consumergroup, registry: Registry
) -> None:
    plant_topic(registry.client, "orders", 2)
    group.offsets.set(P0, 5_000)
    generation = only_generation(run(out_of_range="earliest"))
    with pytest.raises(PastLogEndError, match="read the log end from a broker again") as caught:
        generation.start_offset(P0, log_start=0, log_end=4_999)
    assert (caught.value.group, caught.value.at, caught.value.position, caught.value.end) == (
        "billing",
        P0,
        5_000,
        4_999,
    )
    assert generation.start_offset(P0, log_start=0, log_end=5_000) == 5_000
    assert generation.marked == {}


def test_a_worker_that_fails_on_a_stale_log_end_starts_again_and_moves_once_the_end_is_confirmed(
    run: Run, group: Consumergroup, registry: Registry
) -> None:
    plant_topic(registry.client, "orders", 2)
    group.offsets.set(P0, 5_000)

    def work(generation: Generation) -> None:
        generation.start_offset(P0, log_start=0, log_end=20)
        generation.wait()

    one = run(work=work, out_of_range="earliest")
    one.until(lambda: any(event.kind is EventKind.RESET for event in one.events))
    assert len(one.generations) > 1
    assert one.errors == []


def test_an_ended_generation_does_not_request_another_reading(
    run: Run, group: Consumergroup, registry: Registry
) -> None:
    plant_topic(registry.client, "orders", 2)
    group.offsets.set(P0, 5_000)
    one = run(out_of_range="earliest")
    generation = only_generation(one)
    one.close()
    with pytest.raises(GenerationEndedError):
        generation.start_offset(P0, log_start=0, log_end=20)
