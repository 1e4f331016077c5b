"""One consumer group: its instances, owners and offsets, and what an administrator can do with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..core.znodes.group_description import GroupDescription, RegisteredInstance, dead_instances, describe
from ..core.znodes.paths import GroupPaths
from ..core.znodes.topic_partition import TopicPartition, check_at
from ..core.znodes.values import CommittedOffset, Owner, Registration, UnreadableNode
from ..deadline import Deadline
from ..exceptions import ClaimTimeout, GuardFailedError, NoPermissionError, NotClaimedError, NotRegisteredError
from .admin.evict import evict, force_release, trigger_rebalance
from .admin.groups import Copied, copy_group, delete_group, delete_unchanged, prune_group
from .instance import Instance, read_registration
from .offsets import Offsets
from .reading import group_reader
from .session.session import RegistryContext
from .watch import Watch, Watched


class Consumergroup:
    """One group, whether it exists or not. Make it with `registry.group(name)`.

    - `name`: the name of the group.
    - `offsets`: its committed offsets; see `Offsets`.
    - `paths`: the paths of its znodes, such as `paths.owner(at)`, for requests with `Registry.client`.

    `Member(group, topics)` joins the group. `instance` returns an `Instance`, which claims partitions that you choose.
    """

    def __init__(self, name: str, context: RegistryContext) -> None:
        self.paths = GroupPaths(name)
        self.name = name
        self._context = context
        self.offsets = Offsets(self.paths, context)

    def exists(self) -> bool:
        """Return whether the group has a znode. Registrations, owners or offsets alone are enough."""
        return self._context.session.exists(self.paths.root, deadline=self._context.deadline())

    def create(self) -> None:
        """Create the directories of the group. Does nothing if they exist."""
        deadline = self._context.deadline()
        for directory in (self.paths.ids, self.paths.owners, self.paths.offsets):
            self._context.session.ensure_path(directory, acl=self._context.acls.directories, deadline=deadline)

    def delete(self, offsets: Iterable[CommittedOffset | UnreadableNode] | None = None) -> None:
        """Delete the group with its offsets. Raise `GroupInUseError` if an instance is registered.

        An instance that registers meanwhile is detected, too. With `offsets`, the group is deleted only if it has
        exactly these offsets, unchanged since they were read: otherwise `OffsetConflictError` or `GuardFailedError`.
        """
        if offsets is None:
            delete_group(self.paths, self._context)
        else:
            delete_unchanged(self.paths, self._context, offsets)

    def prune(self, offsets: Iterable[CommittedOffset], *, unused_for: float = 0.0) -> None:
        """Delete the group if it has exactly these offsets, unchanged since they were read, and nothing else.

        With `unused_for`, the last commit must be at least this many seconds ago by the server's clock. For a group
        without offsets, its creation counts.

        Raise `OffsetConflictError` if an offset was committed since, `GuardFailedError` if the group has other nodes or
        was used too recently, and otherwise the errors of `delete`.
        """
        prune_group(self.paths, self._context, offsets, unused_for=unused_for)

    def copy(self, to: str) -> Copied:
        """Copy the offsets to a new group, without registrations and owners. Malformed offsets are left out.

        Raise `GroupExistsError` if the new group exists. If an offset is forbidden, nothing is copied.
        """
        return copy_group(self.paths, GroupPaths(to), self._context)

    def instances(self) -> list[RegisteredInstance]:
        """Return the registered instances, sorted by id. An instance may have an unreadable registration."""
        instances: list[RegisteredInstance] = []
        for _group, found in group_reader.read_instances(self._context, [self.name]):
            if isinstance(found, UnreadableNode):
                raise NoPermissionError(found.path)  # an empty list would say that no instance is registered
            instances.append(found)
        return instances

    def living(self) -> list[RegisteredInstance]:
        """Return the registered instances that may be alive.

        Left out are instances whose registration belongs to no session, unless an owner node has their id.
        """
        instances = self.instances()
        if not any(instance.persistent for instance in instances):
            return instances
        dead = dead_instances(instances, self.owners())
        return [instance for instance in instances if instance not in dead]

    def instance(self, id: str | None = None) -> Instance:
        """Return an instance, which is not yet registered. Without an id, it gets a new one, `host:uuid4`."""
        return Instance(self.paths, self._context, id)

    def registration(self, id: str) -> Registration:
        """Read the registration of an instance. Raise `NotRegisteredError` if there is none."""
        return read_registration(self.paths, self._context, id)

    def raw_registration(self, id: str) -> bytes:
        """Read the bytes of a registration. Raise `NotRegisteredError` if there is none."""
        node = self._context.session.get(self.paths.instance(id), deadline=self._context.deadline())
        if node is None:
            raise NotRegisteredError(self.name, id)
        return node.data

    def owner(self, at: TopicPartition) -> Owner | UnreadableNode | None:
        """Return the owner of a partition, in any client's format; None if it has none."""
        node = self._context.session.get(self.paths.owner(check_at(at)), deadline=self._context.deadline())
        if node is not None:
            return group_reader.owner(at.topic, str(at.partition), node)
        return group_reader.pykafka_owner(self._context, self.paths, at)

    def owners(self) -> Iterator[Owner | UnreadableNode]:
        """Yield all owners, in all formats, topic by topic."""
        return (owner for _group, owner in group_reader.read_owners(self._context, [self.name]))

    def wait_free(self, at: TopicPartition, *, timeout: float) -> None:
        """Wait until a partition has no owner. Raise `ClaimTimeout` with the `owner` after `timeout` seconds."""
        deadline = Deadline.after("timeout", timeout)
        while (owner := self.owner(at)) is not None:
            if not self._context.session.wait_deleted(owner.path, deadline=deadline, timeout=self._context.timeout):
                raise ClaimTimeout(at, owner, timeout)

    def release(self, at: TopicPartition, *, expected_owner: str, expected_session: int | None = None) -> Owner:
        """Take a partition away from its owner, as an administrator. Return the owner.

        Raise `NotClaimedError` if it has no owner, and `GuardFailedError` if the owner's id is not `expected_owner`,
        or its session is not `expected_session`, if given. All registrations of the group are
        rewritten in the same transaction, so that the next commit of the owner fails, if it is a zkgroups member.

        One round trip is not guarded: if the owner releases the partition and another instance claims it between the
        read and the transaction, it is taken away from that instance.
        """
        owner = self.owner(at)
        if owner is None:
            raise NotClaimedError(at, "is not claimed by any instance")
        if isinstance(owner, UnreadableNode):
            raise GuardFailedError(f"{at} is claimed by {owner.holder}; nothing was released: run `zkgroups doctor`")
        force_release(
            self.paths,
            self._context,
            owner,
            self.instances(),
            expected_owner=expected_owner,
            expected_session=expected_session,
        )
        return owner

    def evict(self, id: str, *, expected_session: int | None = None, execute: bool = True) -> tuple[Owner, ...]:
        """Remove a stuck instance, as an administrator: its registration and its owner nodes, in one transaction.

        Return the deleted owners; without `execute`, those that would be deleted. The other instances get their
        partitions in the rebalance that follows.

        Raise `NotRegisteredError` if there is no such instance, and `GuardFailedError` if its session is not
        `expected_session`, if given, or if it changes at the same time.

        A zkgroups member that is only slow joins again, and its commits are refused until then. Other clients may go on
        reading and committing: stop their processes.
        """
        return evict(self.paths, self._context, id, expected_session=expected_session, execute=execute)

    def trigger_rebalance(self) -> None:
        """Make all members of the group rebalance, of any client. Their shares change only if something else changed.

        Scala members need this after `release`: they do not watch the owners. Raise `GroupNotFoundError` if nobody has
        ever registered in the group.
        """
        trigger_rebalance(self.paths, self._context)

    # The whole group

    def topics(self) -> list[str]:
        """Return the topics that instances subscribe to, that have owners, or that have offsets, sorted."""
        return list(self.describe().topics)

    def describe(self) -> GroupDescription:
        """Read the whole group, and return its state, its instances, and its partitions with owners and offsets."""
        [found] = group_reader.read_groups(self._context, [self.name])
        return describe(found)

    def watch(self, what: Watched) -> Watch:
        """Watch the members, owners or offsets of the group, e.g. `group.watch(Watched.OWNERS)`; see `Watch`."""
        return Watch(self.paths, self._context, what)

    def __repr__(self) -> str:
        return f"<Consumergroup {self.name!r}>"


# Owners that pykafka members name by other paths.


def owners_elsewhere(group: Consumergroup, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Owner]:
    """Return the owners of these partitions whose nodes have other paths, so that a claim would succeed beside them."""
    asked = set(partitions)
    return {
        owner.at: owner
        for owner in group.owners()
        if isinstance(owner, Owner) and owner.at in asked and owner.path != group.paths.owner(owner.at)
    }
