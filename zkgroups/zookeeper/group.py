"""One consumer group: what is registered, owned and committed in it, and the acts of an administrator."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from ..core.znodes.describe_group import describe
from ..core.znodes.group_description import GroupDescription
from ..core.znodes.group_view import RegisteredInstance, dead_instances
from ..core.znodes.offset_codec import encode_offset
from ..core.znodes.paths import GroupPaths
from ..core.znodes.topic_partition import TopicPartition, check_at
from ..core.znodes.values import CommittedOffset, ForbiddenNode, Owner, UnreadableNode
from ..deadline import Deadline
from ..exceptions import (
    ClaimTimeout,
    GroupExistsError,
    GroupNotFoundError,
    GuardFailedError,
    InvalidOptionError,
    NoPermissionError,
    NotClaimedError,
)
from .admin.delete_group import delete_group
from .admin.guards import EverybodyLooksAgain
from .admin.prune_group import prune_group
from .instance import Instance
from .offsets import Offsets
from .reading import group_reader
from .requests.batching import in_batches
from .requests.transaction import Create, Delete, Operation, Set, TransactionFailed
from .session.errors import translate
from .session.registry_context import RegistryContext
from .watch import Watch, Watched


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy did: how many offsets it wrote, and which nodes it left out because they hold no offset."""

    offsets: int
    left_out: tuple[UnreadableNode, ...]


class Consumergroup:
    """One group, whether it exists or not. Make it with `registry.group(name)`."""

    def __init__(self, name: str, context: RegistryContext) -> None:
        self.paths = GroupPaths(name)
        self.name = name
        self._context = context
        self.offsets = Offsets(self.paths, context)

    def exists(self) -> bool:
        """Whether there is any znode of the group, be it registrations, owners or offsets only."""
        return self._context.session.exists(self.paths.root, deadline=self._context.deadline())

    def create(self) -> None:
        """Make the directories of the group; nothing happens if they are there."""
        deadline = self._context.deadline()
        for directory in (self.paths.ids, self.paths.owners, self.paths.offsets):
            self._context.session.ensure_path(directory, acl=self._context.acls.directories, deadline=deadline)

    def delete(self) -> None:
        """Delete the group with its offsets; refused while an instance is registered, also if one comes in between."""
        delete_group(self.paths, self._context)

    def prune(self, offsets: Iterable[CommittedOffset]) -> None:
        """Delete the group if it has these offsets, each as it was read, and nothing else.

        `OffsetConflictError` where one was committed since, `GuardFailedError` where there is something else; refused
        as `delete` is.
        """
        prune_group(self.paths, self._context, offsets)

    def copy(self, to: str) -> Copied:
        """Copy the offsets to a new group, which must not exist. Registrations and owners are not copied.

        What is no offset is left out, and told; where one may not be read, nothing is copied.
        """
        target = Consumergroup(to, self._context)
        if not self.exists():
            raise GroupNotFoundError(self.name)
        found = list(self.offsets)
        for denied in found:
            if isinstance(denied, ForbiddenNode):
                raise NoPermissionError(denied.path)
        good = [offset for offset in found if isinstance(offset, CommittedOffset)]
        self._make_empty(target)
        units: list[list[Operation]] = [
            [Create(p, acl=self._context.acls.directories)] for p in _topic_directories(target.paths, good)
        ]
        units += [[self._copied(target.paths, offset)] for offset in good]
        in_batches(
            self._context.session,
            units,
            lambda batch: target._transact([operation for unit in batch for operation in unit]),
        )
        return Copied(len(good), tuple(node for node in found if isinstance(node, UnreadableNode)))

    def _make_empty(self, target: Consumergroup) -> None:
        directories = [target.paths.root, target.paths.ids, target.paths.owners, target.paths.offsets]
        try:
            self._context.session.transact(
                [Create(path, acl=self._context.acls.directories) for path in directories],
                deadline=self._context.deadline(),
            )
        except TransactionFailed as failure:
            if isinstance(failure.error, NodeExistsError):
                raise GroupExistsError(target.name) from failure.error
            raise translate(failure.error, failure.operation.path) from failure.error

    def _copied(self, target: GroupPaths, offset: CommittedOffset) -> Operation:
        return Create(target.offset(offset.at), encode_offset(offset.offset), acl=self._context.acls.offsets)

    def _transact(self, operations: Sequence[Operation]) -> None:
        try:
            self._context.session.transact(operations, deadline=self._context.deadline())
        except TransactionFailed as failure:
            raise translate(failure.error, failure.operation.path) from failure.error

    # Instances

    def instances(self) -> list[RegisteredInstance]:
        """The registered instances, sorted by id; a registration that cannot be read is marked, and stops nothing."""
        instances: list[RegisteredInstance] = []
        for _group, found in group_reader.read_instances(self._context, [self.name]):
            if isinstance(found, UnreadableNode):
                raise NoPermissionError(found.path)  # nobody there and nobody shown are not the same
            instances.append(found)
        return instances

    def living(self) -> list[RegisteredInstance]:
        """The registered instances that may be alive: all except those whose nodes belong to no session.

        Such a node still counts as alive while an owner node has its id.
        """
        instances = self.instances()
        if not any(instance.persistent for instance in instances):
            return instances
        dead = dead_instances(instances, self.owners())
        return [instance for instance in instances if instance not in dead]

    def instance(self, id: str | None = None) -> Instance:
        """An instance to register: with the id given, else with a new one of the form `host:uuid4`."""
        if id is None and self._context.session.is_resumable:  # the next process would not know what this one holds
            reason = "in a session that is kept in a file it must be given, and be the same each time"
            raise InvalidOptionError("id", id, reason)
        return Instance(self, self._context, f"{socket.gethostname()}:{uuid.uuid4()}" if id is None else id)

    def registration(self, instance: str) -> bytes | None:
        """The registration of an instance, byte by byte as it stands there; None if it is not registered."""
        node = self._context.session.get(self.paths.instance(instance), deadline=self._context.deadline())
        return None if node is None else node.data

    # Owners

    def owner(self, at: TopicPartition) -> Owner | UnreadableNode | None:
        """Who holds the partition, None if nobody does; in pykafka's form, too, where there is no other."""
        node = self._context.session.get(self.paths.owner(check_at(at)), deadline=self._context.deadline())
        if node is not None:
            return group_reader.owner(at.topic, str(at.partition), node)
        return group_reader.pykafka_owner(self._context, self.paths, at)

    def owners(self) -> Iterator[Owner | UnreadableNode]:
        """All owners, in whichever form they are written, topic by topic."""
        return (owner for _group, owner in group_reader.read_owners(self._context, [self.name]))

    def wait_free(self, at: TopicPartition, *, timeout: float) -> None:
        """Wait until nobody holds the partition, or `ClaimTimeout`, which says who does and since when."""
        patience = Deadline.after("timeout", timeout)
        while (owner := self.owner(at)) is not None:
            if not self._context.session.wait_deleted(owner.path, deadline=patience, timeout=self._context.timeout):
                raise ClaimTimeout(at, owner, timeout)

    def release(self, at: TopicPartition, *, expected_owner: str, expected_session: int | None = None) -> Owner:
        """Take a partition from somebody else: an administrative act, guarded by who is expected to hold it.

        All registrations of the group are written anew with the same bytes in the same transaction, so that the next
        commit of whoever held the partition is refused, if it is one of ours. Not guarded is one round trip: a
        partition that is let go and taken again by somebody else between our look and our transaction is taken from
        that one.
        """
        owner = self.owner(at)
        if owner is None:
            raise NotClaimedError(at, "is not claimed by anybody")
        if isinstance(owner, UnreadableNode):
            raise GuardFailedError(f"{at} is held by {owner.holder}")
        holder = self._holder(owner)
        if expected_owner not in (owner.id, holder.id if holder else None):
            raise GuardFailedError(f"{at} is claimed by {owner.holder}, not by {expected_owner!r}")
        if expected_session not in (None, owner.session):
            raise GuardFailedError(f"{at} is claimed by {owner.holder}, not by session {expected_session:#x}")
        self._take_away(owner, holder)
        return owner

    def _holder(self, owner: Owner) -> RegisteredInstance | None:
        """The instance that owns, whose registration must be written anew; one that cannot be read may be it."""
        instances = {
            instance.id: instance
            for instance in self.instances()
            if instance.session == owner.session or isinstance(instance.registration, ForbiddenNode)
        }
        id = owner.instance(instances)
        return None if id is None else instances[id]

    def _take_away(self, owner: Owner, holder: RegisteredInstance | None) -> None:
        everybody = EverybodyLooksAgain(self.paths, self._context)
        while True:
            push = everybody.operations()
            if holder is not None and self.paths.instance(holder.id) not in {operation.path for operation in push}:
                if isinstance(holder.registration, ForbiddenNode):
                    raise NoPermissionError(holder.registration.path)
                raise GuardFailedError(f"{owner.at} was claimed by {owner.holder}, who has just left")
            try:
                operations = [*push, Delete(owner.path, owner.version)]
                self._context.session.transact(operations, deadline=self._context.deadline())
                return
            except TransactionFailed as failure:
                if isinstance(failure.operation, Set):
                    everybody.failed(failure)
                elif isinstance(failure.error, NoNodeError | BadVersionError):
                    message = f"{owner.at} changed hands meanwhile, nothing was released"
                    raise GuardFailedError(message) from failure.error
                else:
                    raise translate(failure.error, failure.operation.path) from failure.error

    # All of it

    def topics(self) -> list[str]:
        """The topics that are subscribed to by name or pattern, owned, or have offsets, sorted."""
        return list(self.describe().topics)

    def describe(self) -> GroupDescription:
        """States, totals, orphans, what nobody owns and what cannot be read, from one sweep of the group."""
        [found] = group_reader.read_groups(self._context, [self.name])
        return describe(found)

    def watch(self, what: Watched) -> Watch:
        """Follow members, owners or offsets as they change; see `Watch`."""
        return Watch(self.paths, self._context, what)

    def __repr__(self) -> str:
        return f"<Consumergroup {self.name!r}>"


def _topic_directories(target: GroupPaths, offsets: Sequence[CommittedOffset]) -> list[str]:
    return [target.offset_topic(topic) for topic in dict.fromkeys(offset.at.topic for offset in offsets)]
