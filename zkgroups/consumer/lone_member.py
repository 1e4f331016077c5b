"""A member that takes part in no group: it works on everything, and has the same face as one that shares."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..core.znodes.values import StartAt
from ..exceptions import InvalidOptionError
from ..zookeeper.registry import Registry
from ..zookeeper.session.registry_context import context_of
from .events import MemberStats
from .lone_membership import LoneSeat
from .member import BaseMember
from .options import LONGEST, OnEvent, OnPartitions, Options, subscription


class LoneMember(BaseMember):
    """Every partition of its topics, for itself: no group, no coordination, and nothing is written to ZooKeeper.

    >>> with LoneMember(registry, ["orders"]) as member:  # doctest: +SKIP
    ...     for generation in member.generations():
    ...         generation.start(work)
    ...         generation.wait()

    Another generation begins when partitions or topics come or go. As nothing is committed, the first one begins at
    `start_at`, and those after it where the one before was marked. `Generation.commit` raises `NoGroupError`.

    As nothing is held in a session, nothing is lost with one: work goes on while there is no connection, and what has
    changed is seen when there is one again. So there is no `on_lost`. The other options mean what they do for `Member`.
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
            rebalance_timeout=LONGEST,  # nobody is waited for
            join_backoff=join_backoff,
            reconcile_every=reconcile_every,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            on_event=on_event,
        )
        chosen = subscription(topics, pattern, 1, include_internal=include_internal, assignors=(), timestamp=None)
        stats = MemberStats()
        seat = LoneSeat(context_of(registry), chosen, partitions=partitions, tell=self._tell_changed, stats=stats)
        super().__init__(seat, options, stats)
