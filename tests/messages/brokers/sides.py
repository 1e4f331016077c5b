"""A group that is moved between ZooKeeper and the brokers, and its offsets in both places."""

from __future__ import annotations

from collections.abc import Callable

from tests.waiting import eventually
from zkgroups import CommittedOffset, Consumergroup, Registry
from zkgroups.core.znodes.own_nodes import RouteState
from zkgroups.core.znodes.paths import route_path
from zkgroups.kafka import Brokers
from zkgroups.migration.live_move import MoveOutcome, MoveStep, Side, move_live
from zkgroups.zookeeper.admin.migration_marks import FoundRoute, permit_holders, read_route
from zkgroups.zookeeper.session.session import context_of

from ..looping import LONGEST, Topic


class Sides:
    """One group, its offsets in both places, and the command that moves it."""

    def __init__(self, group: Consumergroup, registry: Registry, brokers: Brokers) -> None:
        self.group, self.registry, self.brokers = group, registry, brokers

    def move(self, to: Side, on_step: Callable[[MoveStep], object] = lambda _step: None) -> MoveOutcome:
        where = self.brokers, self.registry
        return move_live(self.group.name, to, *where, execute=True, patience=LONGEST, on_step=on_step).outcome

    @property
    def route(self) -> FoundRoute:
        return read_route(context_of(self.registry), self.group.name)

    @property
    def state(self) -> RouteState | None:
        return self.route.state

    @property
    def permits(self) -> list[str]:
        return permit_holders(context_of(self.registry), self.group.name)

    def permit_sessions(self, holder: str) -> set[int]:
        """The sessions of the permits of one holder."""
        route = route_path(self.group.name)
        client = self.registry.client
        found = [client.get(f"{route}/{name}") for name in (client.get_children(route) if client.exists(route) else ())]
        return {stat.ephemeralOwner for data, stat in found if data.decode() == holder}

    @property
    def zookeeper(self) -> dict[int, int]:
        return {found.at.partition: found.offset for found in self.group.offsets if isinstance(found, CommittedOffset)}

    @property
    def kafka(self) -> dict[int, int]:
        found = self.brokers.committed([self.group.name])[self.group.name]
        return {at.partition: each.offset for at, each in found.items()}

    def offsets(self, side: Side) -> dict[int, int]:
        return self.kafka if side is Side.KAFKA else self.zookeeper


def await_commits(sides: Sides, side: Side, partitions: int) -> None:
    """Wait until each partition has a commit on this side that was made after the call."""
    before = sides.offsets(side)

    def all_moved() -> bool:
        now = sides.offsets(side)
        return len(now) == partitions and all(offset > before.get(at, 0) for at, offset in now.items())

    assert eventually(all_moved), (before, sides.offsets(side))


def await_all_committed(topic: Topic, sides: Sides, offset: int) -> None:
    """Wait until this offset is committed on the brokers for all partitions."""
    assert eventually(lambda: sides.kafka == {at.partition: offset for at in topic.ats}), sides.kafka
