"""Moving one group of consumers and clients of gateways live: to the brokers, and back.

    move_live("billing", Side.KAFKA, brokers, registry, execute=True)

The state of the move is the route of the group in ZooKeeper (`core/znodes/own_nodes.py`), and nowhere else. Each step
is repeated safely, so a move that was killed continues when it is started again, or is undone by a move in the other
direction:

1. Begin: consumers leave the side where they are, and gateways let their clients leave. Meanwhile all joins wait.
2. Wait until nobody is left there: then no commit of a member is accepted on this side any more.
3. Copy the offsets, and compare both sides.
4. End: the members join on the other side.

If members do not leave in time, or an offset cannot be copied, the group stays where it was.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import Final

from ..core.kafka_values import NativeOffset
from ..core.migration.changes_since_plan import member_obstacles
from ..core.migration.follow_rules import (
    apply_problem,
    members_that_stay_out,
    offsets_to_return,
    other_members,
    plan_problem,
    return_problem,
    some,
    truth_problem,
    truths,
    verify_problem,
)
from ..core.migration.obstacles import texts
from ..core.migration.offset_decision import Rule
from ..core.migration.plan_rows import PlanRow
from ..core.znodes.own_nodes import RouteState
from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import CurrentOffset
from ..core.znodes.values import Side as Side
from ..exceptions import ConflictError, GroupNotFoundError, RefusedError, UnavailableError
from ..kafka import Brokers
from ..zookeeper.admin.migration_marks import FoundRoute, change_route, migrated, permit_holders, read_route
from ..zookeeper.reading.group_reader import read_groups
from ..zookeeper.registry import Registry
from ..zookeeper.session.session import context_of
from .apply import apply_groups, verify_groups
from .current_state import read_targets, topic_creation_zxids
from .plan import Planner, PlanSettings
from .source_nodes import NamedGroup, source_chunks

PATIENCE: Final = 90.0
"""In seconds: longer than the usual session timeouts of clients and gateways."""
_POLL: Final = 0.1


class MoveOutcome(StrEnum):
    """The result of a move."""

    MOVED = "moved"
    WOULD_MOVE = "would move"
    UNDONE = "undone"
    """A move in the other direction that was not finished."""
    WOULD_UNDO = "would undo"
    THERE = "already there"


class MoveStep(StrEnum):
    """The steps of a move, each reported when it is done."""

    BEGUN = "members leave; clients wait"
    LEFT = "all members have left"
    COPIED = "offsets are copied and verified"
    ENDED = "clients continue"


@dataclass(frozen=True, slots=True)
class MoveResult:
    """The result of a move, with the number of members before it, and of offsets that were copied.

    `stay_out`: the members that leave, and do not join on the brokers.
    """

    group: str
    to: Side
    outcome: MoveOutcome
    members: int = 0
    offsets: int = 0
    stay_out: Sequence[str] = ()


def move_live(
    group: str,
    to: Side,
    brokers: Brokers,
    registry: Registry,
    *,
    execute: bool,
    rule: Rule | None = None,
    patience: float = PATIENCE,
    on_step: Callable[[MoveStep], object] = lambda _step: None,
) -> MoveResult:
    """Move a group of consumers and clients of gateways; without `execute`, only check whether it can be moved.

    `rule` decides about offsets in ZooKeeper that cannot be copied unchanged. `patience` is how many seconds to wait
    for the members to leave. Raise `RefusedError` if the group cannot be moved: then it is where it was. After any
    other error the move may be unfinished.
    """
    return _LiveMove(group, brokers, registry, rule or Rule(), patience, on_step).run(to, execute=execute)


class _LiveMove:
    """One call of `move_live`."""

    def __init__(
        self,
        group: str,
        brokers: Brokers,
        registry: Registry,
        rule: Rule,
        patience: float,
        on_step: Callable[[MoveStep], object],
    ) -> None:
        self._group = group
        self._brokers = brokers
        self._registry = registry
        self._context = context_of(registry)
        self._rule = rule
        self._patience = patience
        self._on_step = on_step
        self._found = read_route(self._context, group)
        route = self._found.route
        self._plan = f"live-{uuid.uuid4().hex[:12]}" if route is None else route.plan
        self._truth = None if route is None else route.truth
        self._stay_out: dict[str, None] = {}

    def run(self, to: Side, *, execute: bool) -> MoveResult:
        state = self._found.state
        if state is None and self._found.mark is not None:
            raise migrated(self._group, self._found.mark)
        match to, state:
            case (Side.KAFKA, RouteState.KAFKA) | (Side.ZOOKEEPER, None):
                self._require_group()
                return MoveResult(self._group, to, MoveOutcome.THERE)
            case (Side.KAFKA, RouteState.MOVING_TO_ZOOKEEPER):
                return self._undo(to, RouteState.KAFKA, execute=execute)
            case (Side.ZOOKEEPER, RouteState.MOVING_TO_KAFKA):
                return self._undo(to, None, execute=execute)
        try:
            move = self._move_to_kafka if to is Side.KAFKA else self._move_to_zookeeper
            return move(execute=execute)
        except RefusedError:
            if execute:
                self._bring_back()
            raise

    def _bring_back(self) -> None:
        """Undo the move if it has begun: the clients must not wait for an administrator."""
        match self._found.state:
            case RouteState.MOVING_TO_KAFKA:
                self._change(None)
            case RouteState.MOVING_TO_ZOOKEEPER:
                self._change(RouteState.KAFKA)

    def _undo(self, to: Side, state: RouteState | None, *, execute: bool) -> MoveResult:
        """Undo a move in the other direction. No member could commit on the other side yet."""
        if execute:
            self._change(state)
        return MoveResult(self._group, to, MoveOutcome.UNDONE if execute else MoveOutcome.WOULD_UNDO)

    # To the brokers

    def _move_to_kafka(self, *, execute: bool) -> MoveResult:
        self._require_group()
        members = self._registered()
        rows = self._planned()
        self._refuse_if(plan_problem(rows, members_leave=True))
        self._refuse_if(self._native_members_problem())
        offsets = sum(row.is_commit for row in rows)
        if not execute:
            return MoveResult(self._group, Side.KAFKA, MoveOutcome.WOULD_MOVE, len(members), offsets, [*self._stay_out])
        if self._found.state is None:
            self._change(RouteState.MOVING_TO_KAFKA)
        self._on_step(MoveStep.BEGUN)
        self._wait(self._registered)
        self._on_step(MoveStep.LEFT)
        offsets = self._copy_to_kafka()
        self._on_step(MoveStep.COPIED)
        self._change(RouteState.KAFKA)
        self._on_step(MoveStep.ENDED)
        return MoveResult(self._group, Side.KAFKA, MoveOutcome.MOVED, len(members), offsets, [*self._stay_out])

    def _require_group(self) -> None:
        if not self._registry.group(self._group).exists():
            raise GroupNotFoundError(self._group)

    def _registered(self) -> list[str]:
        """Return the members in ZooKeeper. Refuse members that cannot move with their group."""
        self._registry.sync()
        [view] = read_groups(self._context, [self._group], with_offsets=False)
        self._refuse_if(some([str(node.path) for node in view.hidden]), "these nodes cannot be read: ")
        others = other_members(view.living)
        self._refuse_if(some(others), "members that cannot move with it are registered: ")
        found = truths(view.living)
        self._truth = self._truth or next(iter(found.values()), None)
        self._refuse_if(truth_problem(found, self._truth or Side.ZOOKEEPER))
        self._stay_out |= dict.fromkeys(members_that_stay_out(view.living))
        return [each.id for each in view.living]

    def _planned(self) -> Sequence[PlanRow]:
        """Plan the move of the offsets as they are now. Empty if there are none, or if they are on the brokers."""
        if self._truth is Side.KAFKA:
            return []
        nodes = [*chain.from_iterable(source_chunks(self._registry, [NamedGroup(self._group, self._group)], None))]
        if not nodes:
            return []
        settings = PlanSettings(
            plan=self._plan,
            planned_ms=_now_ms(),
            brokers=str(self._brokers),
            cluster=self._brokers.cluster_id(),
            rule=self._rule,
            topics_created=topic_creation_zxids(self._registry, {node.topic for node in nodes if node.topic}),
        )
        return Planner(settings, self._brokers).plan(nodes)

    def _native_members_problem(self) -> str:
        return texts(member_obstacles(read_targets(self._brokers, [self._group])[self._group]))

    def _copy_to_kafka(self) -> int:
        rows = self._planned()
        self._refuse_if(plan_problem(rows, members_leave=False))
        self._refuse_if(self._native_members_problem())
        if not rows:
            return 0
        self._refuse_if(apply_problem(apply_groups(rows, self._brokers, self._registry, execute=True)))
        self._refuse_if(verify_problem(verify_groups(rows, self._brokers, self._registry)))
        return sum(row.is_commit for row in rows)

    # To ZooKeeper

    def _move_to_zookeeper(self, *, execute: bool) -> MoveResult:
        self._refuse_registered()
        state = read_targets(self._brokers, [self._group])[self._group]
        self._refuse_if(state.unreadable)
        count = len(state.members)
        offsets = len(self._offsets_to_return(state.committed)[0])
        if not execute:
            return MoveResult(self._group, Side.ZOOKEEPER, MoveOutcome.WOULD_MOVE, count, offsets)
        if self._found.state is RouteState.KAFKA:
            self._change(RouteState.MOVING_TO_ZOOKEEPER)
        self._on_step(MoveStep.BEGUN)
        self._wait(self._at_the_brokers)
        self._on_step(MoveStep.LEFT)
        offsets = self._copy_to_zookeeper()
        self._on_step(MoveStep.COPIED)
        self._change(None)
        self._on_step(MoveStep.ENDED)
        return MoveResult(self._group, Side.ZOOKEEPER, MoveOutcome.MOVED, count, offsets)

    def _refuse_registered(self) -> None:
        """Refuse if a member is registered in ZooKeeper: an old client that ignores the mark."""
        self._refuse_if(some(self._registered()), "members are registered in ZooKeeper: ")

    def _at_the_brokers(self) -> list[str]:
        """Return who may use the brokers for the group, and its members there."""
        if holders := permit_holders(self._context, self._group):
            return holders
        state = read_targets(self._brokers, [self._group])[self._group]
        return [state.unreadable] if state.unreadable else list(state.members)

    def _offsets_to_return(
        self, committed: Mapping[TopicPartition, NativeOffset]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, CurrentOffset]]:
        """Return the offsets to write to ZooKeeper, and those that it has, which the decision depends on."""
        found = self._registry.group(self._group).offsets.fetch_many(committed)
        self._refuse_if(return_problem(committed, found))
        return offsets_to_return(committed, found), found

    def _copy_to_zookeeper(self) -> int:
        self._refuse_registered()
        before = read_targets(self._brokers, [self._group])[self._group]
        self._refuse_if(texts(member_obstacles(before)))
        writes, found = self._offsets_to_return(before.committed)
        errors = self._registry.group(self._group).offsets.replace(writes, expected=found)
        self._refuse_if(some([str(error) for error in errors.values()]))
        after = read_targets(self._brokers, [self._group])[self._group]
        self._refuse_if(texts(member_obstacles(after)))
        if after != before or self._offsets_to_return(after.committed)[0]:
            self._refuse_if("offsets were committed on the brokers meanwhile, by a client that uses no gateway")
        self._refuse_registered()
        return len(writes)

    def _wait(self, remaining: Callable[[], Sequence[str]]) -> None:
        """Wait until nobody remains."""
        deadline = time.monotonic() + self._patience
        while left := self._remaining(remaining, is_last=time.monotonic() > deadline):
            if time.monotonic() > deadline:
                self._refuse_if(
                    f"after {self._patience:g} s there are still {some(left)}; wait longer with --wait, or stop them"
                )
            time.sleep(_POLL)

    def _remaining(self, remaining: Callable[[], Sequence[str]], *, is_last: bool) -> Sequence[str]:
        """Return who remains. While a server is unavailable, ask again."""
        try:
            return remaining()
        except UnavailableError as error:
            if is_last:
                raise
            return [str(error)]

    def _refuse_if(self, problem: str, before: str = "") -> None:
        if problem:
            raise RefusedError(f"group {self._group!r} cannot be moved: {before}{problem}")

    def _change(self, state: RouteState | None) -> None:
        """Bring the route into a state. Raise `ConflictError` if another command has changed it."""
        found = read_route(self._context, self._group)
        if (found.route, found.version) != (self._found.route, self._found.version):
            raise self._changed_meanwhile()
        truth = self._truth or Side.ZOOKEEPER
        change_route(self._context, found, state, plan=self._plan, since_ms=_now_ms(), truth=truth)
        self._found = read_route(self._context, self._group) if state is not None else FoundRoute(self._group)
        route = self._found.route
        if state is not None and (route is None or (route.plan, route.state) != (self._plan, state)):
            raise self._changed_meanwhile()

    def _changed_meanwhile(self) -> ConflictError:
        return ConflictError(f"another command has changed the route of group {self._group!r}: run this one again")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
