"""Where the partitions of a group should be, where they are, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from zkgroups import RegisteredInstance, Registration, TopicPartition
from zkgroups.core.doctor.findings import CheckCode
from zkgroups.core.rebalance.explanation import GroupExplanation, Placement, StrategyReason, explain
from zkgroups.core.rebalance.members import Stream
from zkgroups.core.rebalance.roster import Roster
from zkgroups.core.rebalance.shared_plan import SharedPlan
from zkgroups.core.znodes.group_description import Obstacle
from zkgroups.core.znodes.registration_codec import encode_registration

from .doctor_nodes import SCALA, group, member, owner

FOUR = {"orders": (0, 1, 2, 3)}


def ats(*numbers: int, topic: str = "orders") -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in numbers]


def announcing(
    id: str, *strategies: str, topics: tuple[str, ...] = ("orders",), session: int = 1
) -> RegisteredInstance:
    data = encode_registration(Registration(dict.fromkeys(topics, 1), assignors=strategies))
    return member(id, data, session=session)


def explained(*instances: RegisteredInstance, owners: dict[int, str] | None = None, **more: Any) -> GroupExplanation:
    """Explain a group of these instances. `owners` has the owners of the partitions of orders."""
    sessions = {each.id: each.session for each in instances}
    found = [
        owner(id, TopicPartition("orders", at), session=sessions.get(id.removesuffix("-0"), 99))
        for at, id in (owners or {}).items()
    ]
    partitions = more.pop("partitions", FOUR)
    return explain(group(*instances, owners=tuple(found), partitions=partitions).view, **more)


def placements(found: GroupExplanation) -> list[Placement]:
    return [each.placement for each in found.partitions]


def planned(found: GroupExplanation) -> list[str | None]:
    return [each.planned and each.planned.instance for each in found.partitions]


def test_partitions_of_a_settled_group_are_as_planned() -> None:
    found = explained(announcing("a", "range"), announcing("b", "range"), owners={0: "a-0", 1: "a-0", 2: "b-0", 3: "b"})
    assert placements(found) == [Placement.AS_PLANNED] * 4
    assert (found.strategy, found.reason, found.planner) == ("range", StrategyReason.AGREED, None)
    assert [(each.topics, each.partitions, each.streams) for each in found.divisions] == [(("orders",), 4, 2)]
    assert found.findings == ()


def test_a_partition_without_an_owner_and_one_of_another_member_are_not_as_planned() -> None:
    found = explained(announcing("a", "range"), announcing("b", "range"), owners={0: "a", 1: "a", 2: "a"})
    assert placements(found)[2:] == [Placement.HELD, Placement.UNOWNED]
    assert planned(found) == ["a", "a", "b", "b"]


def test_an_owner_that_is_not_registered_blocks_its_partition() -> None:
    found = explained(announcing("a", "range"), owners={0: "gone", 1: "a", 2: "a", 3: "a"})
    assert (found.partitions[0].placement, found.partitions[0].obstacle) == (Placement.BLOCKED, Obstacle.NOT_REGISTERED)
    assert [each.code for each in found.findings] == [CheckCode.ORPHAN_OWNER]


def test_a_partition_whose_owner_has_the_only_subscription_to_another_topic_is_not_subscribed() -> None:
    found = explained(
        announcing("a", "range", topics=("refunds",)), owners={0: "a"}, partitions={**FOUR, "refunds": (0,)}
    )
    assert [(str(each.at), each.placement) for each in found.partitions] == [
        ("orders/0", Placement.NOT_SUBSCRIBED),
        ("refunds/0", Placement.UNOWNED),
    ]


def test_a_registration_that_scala_members_cannot_read_is_a_finding_and_gets_no_share() -> None:
    found = explained(member("scala", SCALA), member("x", b"not json", session=2))
    assert set(planned(found)) == {"scala"}
    assert found.idle == ("x",)
    assert CheckCode.SCALA_CANNOT_READ in {each.code for each in found.findings}


def test_a_topic_that_kafka_has_not_registered_is_missing() -> None:
    found = explained(announcing("a", "range", topics=("orders", "nowhere")))
    assert (found.missing, {each.at.topic for each in found.partitions}) == (("nowhere",), {"orders"})


# Strategies


def test_members_without_a_common_strategy_follow_the_default() -> None:
    found = explained(announcing("a", "sticky"), announcing("b", "roundrobin"))
    assert (found.strategy, found.reason) == ("range", StrategyReason.NOT_COMMON)
    beside_scala = explained(announcing("a", "sticky"), member("s", SCALA))
    assert (beside_scala.strategy, beside_scala.reason) == ("range", StrategyReason.NOT_COMMON)


def test_the_strategy_of_scala_members_is_range_unless_only_roundrobin_fits_their_owners() -> None:
    members = member("a", SCALA, session=1), member("b", SCALA, session=2)
    assumed = explained(*members, owners={0: "a-0", 1: "a-0", 2: "b-0", 3: "b-0"})
    assert (assumed.strategy, assumed.reason) == ("range", StrategyReason.ASSUMED)
    dealt = explained(*members, foreign="roundrobin")
    assert (dealt.strategy, dealt.reason) == ("roundrobin", StrategyReason.GIVEN)
    owners = {each.at.partition: f"{each.planned}" for each in dealt.partitions}
    inferred = explained(*members, owners=owners)
    assert (inferred.strategy, inferred.reason) == ("roundrobin", StrategyReason.INFERRED)
    assert set(placements(inferred)) == {Placement.AS_PLANNED}
    alone = explained(members[0], owners=dict.fromkeys(range(4), "a-0"))  # both fit
    assert (alone.strategy, alone.reason) == ("range", StrategyReason.ASSUMED)
    halfway = explained(*members, owners={0: owners[0]})
    assert halfway.reason is StrategyReason.ASSUMED


def test_the_written_plan_counts_only_for_these_members_and_this_strategy() -> None:
    members = announcing("a", "sticky"), announcing("b", "sticky")
    plan = {at: Stream("b" if at.partition else "a", 0) for at in ats(0, 1, 2, 3)}
    roster = Roster(0, 7, members, FOUR)
    written = SharedPlan(roster.fingerprint, "sticky", plan)
    follows = explained(*members, written=written, ids_zxid=7)
    assert (follows.plan_is_written, follows.planner, planned(follows)) == (True, "a", ["a", "b", "b", "b"])
    for other in (
        explained(*members, written=written, ids_zxid=8),  # an instance has left or registered since
        explained(*members, written=replace(written, strategy="mine"), ids_zxid=7),
        explained(*members, written=replace(written, assignment={}), ids_zxid=7),
    ):
        assert not other.plan_is_written
        assert sorted(map(str, planned(other))) == ["a", "a", "b", "b"]


def test_the_plan_of_an_unknown_strategy_is_unknown_unless_it_is_written() -> None:
    members = (announcing("a", "mine"),)
    unknown = explained(*members, owners={0: "a"})
    assert (unknown.plan_is_known, set(placements(unknown))) == (False, {Placement.UNKNOWN})
    plan = dict.fromkeys(ats(0, 1, 2, 3), Stream("a", 0))
    fingerprint = Roster(0, 0, members, FOUR).fingerprint
    assert explained(*members, written=SharedPlan(fingerprint, "mine", plan)).plan_is_known


# Members that leave


def test_without_a_member_the_others_get_its_partitions() -> None:
    found = explained(announcing("a", "range"), announcing("b", "range"), announcing("c", "range"), without=("a",))
    later = [each.planned_without and each.planned_without.instance for each in found.partitions]
    assert (planned(found), later) == (["a", "a", "b", "c"], ["b", "b", "c", "c"])


def test_with_sticky_the_others_keep_their_partitions() -> None:
    owners = {0: "a", 1: "b", 2: "b", 3: "c"}
    members = (announcing(id, "sticky", session=number) for number, id in enumerate("abc", 1))
    found = explained(*members, owners=owners, without=("a",))
    later = [each.planned_without and each.planned_without.instance for each in found.partitions]
    assert later == ["c", "b", "b", "c"]


def test_the_strategy_of_the_remaining_members_may_be_another_one() -> None:
    found = explained(announcing("a", "sticky", "range"), member("s", SCALA), without=("s",))
    assert (found.strategy, found.strategy_without) == ("range", "sticky")


def test_without_all_members_nothing_is_planned() -> None:
    found = explained(announcing("a", "range"), without=("a",))
    assert {each.planned_without for each in found.partitions} == {None}
