"""Registrations that a resumed session has brought along, and that this process does not use.

The process before this one may have had other ids, for example the name of a container that was replaced. The resumed
session keeps their registrations and claims alive, so that no member can have their partitions. A member deregisters
them in its group. It waits for one session timeout first: other members of this process may still be about to start.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ..core.znodes.group_view import RegisteredInstance
from ..deadline import uptime
from ..exceptions import AlreadyRegisteredError, ZkgroupsException
from ..zookeeper.group import Consumergroup
from ..zookeeper.member_instance import MemberInstance
from ..zookeeper.ownership.instance_ids_in_use import is_in_use
from ..zookeeper.session.registry_context import context_of

log = logging.getLogger("zkgroups.member")


class UnusedRegistrations:
    """The unused registrations of one group, with the time since when each is known to be unused."""

    def __init__(self, group: Consumergroup) -> None:
        self._group = group
        self._session = context_of(group).session
        self._since: dict[str, float] = {}

    def deregister(self, registered: Iterable[RegisteredInstance]) -> None:
        """Deregister the instances that were unused for a session timeout. Errors are logged: the next call retries."""
        resumed = self._session.resumed
        if resumed is None:
            return
        now, known = uptime(), self._since
        mine = (each.id for each in registered if each.session == resumed)
        unused = [id for id in mine if not is_in_use(self._session, self._group.paths.instance(id))]
        self._since = {id: known.get(id, now) for id in unused}
        limit = self._session.granted_timeout or context_of(self._group).timeout
        for id, since in self._since.items():
            if now - since >= limit:
                self._deregister(id, limit)

    def _deregister(self, id: str, limit: float) -> None:
        instance, name = MemberInstance(self._group.paths, context_of(self._group), id), self._group.name
        try:
            if instance.resume():
                instance.deregister()
                log.warning("deregistered %r of group %r, unused for %g s in a resumed session", id, name, limit)
        except AlreadyRegisteredError:
            return  # another member of this process has just started with this id
        except ZkgroupsException as error:
            log.warning("could not deregister %r of group %r, retrying: %s", id, name, error)
        instance.free_id()
