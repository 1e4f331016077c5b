"""A member without a group: it works on all partitions of its topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..core.znodes.values import StartAt
from ..exceptions import InvalidOptionError
from ..zookeeper.registry import Registry
from ..zookeeper.session.registry_context import context_of
from .events import MemberStats
from .lone_membership import LoneMembership
from .member import BaseMember
from .options import LONGEST_DURATION, OnEvent, OnPartitions, Options, subscription


class LoneMember(BaseMember):
    """A member that works on all partitions of its topics. It joins no group and writes nothing to ZooKeeper.

    >>> with LoneMember(registry, ["orders"]) as member:  # doctest: +SKIP
    ...     for generation in member.generations():
    ...         generation.start(work)  # as for a `Member`
    ...         generation.wait()

    A new generation begins when partitions or topics appear or disappear. Nothing is committed: the first generation
    begins at `start_at`, each later one at the marked offsets. To continue after a restart, your program must store
    `Generation.marked` itself. `Generation.commit` raises `NoGroupError`.

    It has no claims, so it loses nothing when the session expires. Work goes on without a connection, and changes are
    seen after the reconnect. `on_lost` does not exist. The other options are those of `Member`.
    """

    def __init__(
        self,
        registry: Registry,
        topics: str | Iterable[str] = (),
        *,
        pattern: str | None = None,
        include_internal: bool = False,
        partitions: Callable[[str], Iterable[int]] | None = None,
        start_at: StartAt | str = StartAt.EARLIEST,
        out_of_range: StartAt | str = "error",
        release_timeout: float = 4.0,
        join_backoff: float = 5.0,
        reconcile_every: float = 5.0,
        on_assigned: OnPartitions | None = None,
        on_revoked: OnPartitions | None = None,
        on_event: OnEvent | None = None,
    ) -> None:
        if not isinstance(registry, Registry):
            raise InvalidOptionError("registry", registry, "it must be a Registry: Registry.connect(hosts)")
        options = Options(
            partitions=partitions,
            start_at=start_at,
            out_of_range=out_of_range,
            release_timeout=release_timeout,
            rebalance_timeout=LONGEST_DURATION,  # it never waits for others
            join_backoff=join_backoff,
            reconcile_every=reconcile_every,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            on_event=on_event,
        )
        chosen = subscription(topics, pattern, 1, include_internal=include_internal, assignors=(), timestamp=None)
        stats = MemberStats()
        membership = LoneMembership(
            context_of(registry), chosen, partitions=partitions, tell=self._tell_changed, stats=stats
        )
        super().__init__(membership, options, stats)
