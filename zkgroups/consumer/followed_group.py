"""Follows a group that is moved live between ZooKeeper and the brokers (`core/znodes/own_nodes.py`).

A consumer joins it on the brokers. A member stays out until it is back: it does not fetch, so it cannot join there.
"""

from __future__ import annotations

from collections.abc import Callable

from ..core.znodes.own_nodes import RouteState
from ..exceptions import GroupMovedError
from ..zookeeper.ownership.routes import GroupRoutes
from .membership import AnyMembership


class FollowedGroup:
    """The two places of one group. `wake` asks the member's thread to call `find`.

    `on_brokers` makes the membership on the brokers; None for a member that stays out.
    """

    def __init__(
        self,
        group: str,
        routes: GroupRoutes,
        *,
        in_zookeeper: AnyMembership,
        on_brokers: Callable[[], AnyMembership] | None,
        wake: Callable[[], object],
    ) -> None:
        self._group = group
        self._routes = routes
        self._in_zookeeper = in_zookeeper
        self._make = on_brokers
        self._on_brokers: AnyMembership | None = None
        self._wake = wake
        self._is_out_of_date = True
        self._is_open = False
        self._may_have_leftovers = True

    def find(self, *, anew: bool = False) -> AnyMembership | None:
        """Return the membership where the group is now. None while the member must stay out.

        With `anew`, ask ZooKeeper even if no watch has fired: watches come on another thread than answers.
        """
        if not self._is_open:
            self._is_open = True
            self._routes.open(self._changed, lambda _group, _state: None)
        if self._is_out_of_date or anew:
            self._is_out_of_date = False
            try:
                self._routes.refresh()
                self._delete_leftovers()
            except BaseException:
                self._is_out_of_date = True
                raise
        match self._routes.state(self._group):
            case None:
                return self._in_zookeeper
            case RouteState.KAFKA if self._make is not None:
                self._on_brokers = self._on_brokers or self._make()
                return self._on_brokers
        return None

    def _delete_leftovers(self) -> None:
        """Once, when it is known where the group is."""
        if self._may_have_leftovers and self._routes.state(self._group) is not None:
            self._routes.delete_leftovers(self._group)
        self._may_have_leftovers = False

    @property
    def away(self) -> GroupMovedError | None:
        """The error of a member that stays out, after `find` has returned None. None for a consumer, which waits."""
        if self._make is not None:
            return None
        return GroupMovedError(self._group, moving=self._routes.state(self._group) is not RouteState.KAFKA)

    def _changed(self) -> None:
        """Called on kazoo's threads."""
        self._is_out_of_date = True
        self._wake()

    def close(self) -> None:
        """Follow the group no more, and give the permit back."""
        self._routes.close()
