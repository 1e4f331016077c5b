"""Every error zkgroups raises, in one tree; catch a name in the middle to tell kinds of trouble apart.

ZkgroupsException
├── InvalidInputError (ValueError)      refused before anything was sent
│   ├── InvalidNameError                a name that cannot be a znode, or would change its path
│   └── InvalidOptionError              an option outside its bounds
├── NotFoundError
│   ├── NoRegistryError                 the chroot is missing, or has neither groups nor brokers
│   ├── GroupNotFoundError
│   ├── NotRegisteredError              the instance has no registration of this session
│   ├── NotClaimedError                 the partition is not held by the one who acts on it
│   ├── UnknownPartitionError           the brokers have no such topic, or no such partition of it
│   ├── GenerationEndedError            what the generation held may be somebody else's by now
│   └── NoGroupError                    a member without a group has nowhere to commit
├── RefusedError                        possible, but it would hurt somebody or lose something
│   ├── GroupInUseError                 instances are registered
│   ├── GroupExistsError
│   ├── OffsetWouldGoBackError          rule 5: only when told
│   ├── OffsetOutOfRangeError
│   │   └── CommittedOutOfRangeError    found by a member at the start; carries the group
│   ├── BrokersTooOldError              the brokers' release does not support it
│   ├── GuardFailedError                what an administrative act expected is not what is there
│   ├── NotSharedError                  Spark's workers write, or may write, to files that its driver does not see
│   ├── GroupMigratedError              the group is being moved to Kafka's own offsets, or was
│   └── InterruptedDeleteError          a group that was too large for one transaction is partly deleted
├── ConflictError                       somebody else was first
│   ├── AlreadyRegisteredError
│   ├── AlreadyClaimedError             by this very instance
│   ├── ClaimedByOtherError             carries the owner
│   ├── SessionInUseError               another process has the file in which the session is kept
│   ├── ReentrantCallError              a signal handler interrupted a call that it would have to wait for
│   └── OffsetConflictError             the offset changed since it was read
├── AccessError
│   ├── AuthenticationError             who we are was not accepted
│   └── NoPermissionError               what we may do was not enough
├── UnavailableError                    no server, or nothing certain from one
│   ├── NotConnectedError               no answer within the time given
│   │   ├── UnreachableError            no host could be reached, so the rest of the time was not waited for
│   │   └── DamagedAnswerError          the server is not a ZooKeeper server, or its answer is damaged
│   ├── ReadOnlyError                   the connection or the server takes no writes
│   ├── PastLogEndError                 the log end may be stale, and has to be read again
│   ├── SessionLostError                every claim and registration of that session is void
│   └── OutcomeUnknownError             sent, and it could not be found out what became of it
├── MemberClosedError                   the member has left, and has no more generations
├── ClaimTimeout                        waited for a partition in vain; carries the owner
├── MalformedNodeError                  a znode that cannot be read as what it should be
├── DamagedDataError                    files of ZooKeeper that do not add up to a state
├── SparkJobError                       a Spark job failed; of a snapshot, nothing is seen
│   ├── DamagedFileError                the files that it read are not as they were written
│   └── SparkStoppedError               its cluster or its user stopped Spark
├── TooLargeError                       would break the server's limit on one request
├── MissingDependencyError              an extra or a program that is not installed
└── ServerStartError                    a throw-away server did not come up; carries the tail of its log
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .input_errors import InvalidInputError as InvalidInputError
from .input_errors import InvalidNameError as InvalidNameError
from .input_errors import InvalidOptionError as InvalidOptionError
from .input_errors import ZkgroupsException as ZkgroupsException

if TYPE_CHECKING:
    from .core.znodes.topic_partition import TopicPartition
    from .core.znodes.values import CommittedOffset, MalformedNode, Owner, UnreadableNode


def _of_group(group: str) -> str:
    """A member that is in no group has an empty name for it."""
    return f" of group {group!r}" if group else ""


class NotFoundError(ZkgroupsException):
    """What was asked for is not there."""


class NoRegistryError(NotFoundError):
    """The chroot is missing, or nothing in it shows that groups or brokers were ever there."""


class GroupNotFoundError(NotFoundError):
    """There is no znode of that group."""

    def __init__(self, group: str) -> None:
        super().__init__(f"there is no group {group!r}")
        self.group = group


class NotRegisteredError(NotFoundError):
    """The instance has no registration, or none that belongs to this session."""

    def __init__(self, group: str, instance: str) -> None:
        super().__init__(f"instance {instance!r} is not registered in group {group!r}")
        self.group = group
        self.instance = instance


class NotClaimedError(NotFoundError):
    """The partition is not held by the one who acted on it: released, taken away, or never claimed."""

    def __init__(self, at: TopicPartition, reason: str = "is not claimed by this instance") -> None:
        super().__init__(f"{at} {reason}")
        self.at = at


class UnknownPartitionError(NotFoundError):
    """The brokers have no such topic, or fewer partitions of it; nothing was written."""

    def __init__(self, at: TopicPartition) -> None:
        super().__init__(f"the brokers know no partition {at}")
        self.at = at


class GenerationEndedError(NotFoundError):
    """The generation has ended: what it held may be somebody else's by now, and nothing was changed."""

    def __init__(self, group: str, number: int) -> None:
        super().__init__(f"generation {number}{_of_group(group)} has ended")
        self.group = group
        self.number = number


class NoGroupError(NotFoundError):
    """There is no group to commit offsets in: whoever takes part in none keeps them elsewhere."""

    def __init__(self) -> None:
        super().__init__("there is no group to commit in: keep offsets elsewhere, or take part in a group as a Member")


class RefusedError(ZkgroupsException):
    """It could be done, but it would hurt somebody or lose something."""


class GroupInUseError(RefusedError):
    """The group has registered instances, or owners of a living session."""

    def __init__(self, group: str, instances: Sequence[str]) -> None:
        shown = ", ".join(instances[:3]) + (f" and {len(instances) - 3} more" if len(instances) > 3 else "")
        super().__init__(f"group {group!r} is in use by {shown or 'an instance that has just registered'}")
        self.group = group
        self.instances = tuple(instances)


class GroupExistsError(RefusedError):
    """The group is already there and would be mixed with another."""

    def __init__(self, group: str) -> None:
        super().__init__(f"group {group!r} exists already")
        self.group = group


class OffsetWouldGoBackError(RefusedError):
    """The offset is lower than the committed one, and the caller did not say that it may be."""

    def __init__(self, group: str, at: TopicPartition, committed: int, offset: int, *, cure: str = "") -> None:
        text = f"offset of {at} in group {group!r} is {committed} and would go back to {offset}"
        super().__init__(f"{text}: {cure}" if cure else text)
        self.group = group
        self.at = at
        self.committed = committed
        self.offset = offset


class OffsetOutOfRangeError(RefusedError):
    """The offset lies outside the range it was checked against."""

    def __init__(self, at: TopicPartition, offset: int, start: int, end: int) -> None:
        super().__init__(f"offset {offset} of {at} is outside {start} to {end}")
        self.at = at
        self.offset = offset
        self.start = start
        self.end = end


class CommittedOutOfRangeError(OffsetOutOfRangeError):
    """A committed offset is outside of the log, so a member cannot start there; nothing was changed."""

    def __init__(self, group: str, at: TopicPartition, committed: int, start: int, end: int) -> None:
        super().__init__(at, committed, start, end)
        ways = 'pass out_of_range="earliest" or "latest" to the member'
        if group:
            ways += f", or move the offset with `zkgroups offsets reset {shlex.quote(group)}`"
        self.args = (
            f"committed offset {committed} of {at}{_of_group(group)} is outside of the log, "
            f"which has {start} to {end}: {ways}",
        )
        self.group = group
        self.committed = committed


class BrokersTooOldError(RefusedError):
    """The brokers' release does not support it, or would misunderstand the request; nothing was changed."""


class GuardFailedError(RefusedError):
    """An administrative act expected something else than what is there; nothing was changed."""


class GroupMigratedError(RefusedError):
    """A migration has marked the group, and nobody may join it; a mark that cannot be read keeps everybody out, too."""

    def __init__(self, group: str, what: str, *, plan: str | None = None, target: str | None = None) -> None:
        way = f"`zkgroups migrate {'unmark' if plan else 'unmark --force'} {shlex.quote(group)}`"
        ways = f"`zkgroups migrate rollback` or {way} lets" if plan else f"{way} lets"
        super().__init__(f"group {group!r} {what}: {ways} members join again")
        self.group = group
        self.plan = plan
        self.target = target


class NotSharedError(RefusedError):
    """Spark's workers wrote, or may write, to files that its driver does not see; nothing was marked as written."""

    def __init__(self, destination: str, reason: str, more: str = "") -> None:
        cure = "use hdfs://, s3a:// or a mount that all machines share"
        super().__init__("; ".join(filter(None, [f"{destination} was not written: {reason}", cure, more])))
        self.destination = destination


class InterruptedDeleteError(RefusedError):
    """A group too large for one transaction is partly deleted; whole topics are left, and no topic is half gone."""

    def __init__(self, group: str, left: Sequence[str], because: str) -> None:
        super().__init__(f"group {group!r} is partly deleted, {len(left)} topics are left whole: {because}")
        self.group = group
        self.left = tuple(left)


class ConflictError(ZkgroupsException):
    """Somebody else was first, or has changed it meanwhile."""

    retriable = True


_NO_SESSION = "a node of no session, which never goes away by itself; `zkgroups doctor` can delete it"


class AlreadyRegisteredError(ConflictError):
    """The id is registered already, by another session or by another object of this one."""

    def __init__(self, group: str, instance: str, session: int) -> None:
        holder = f"session {session & 0xFFFF_FFFF_FFFF_FFFF:#x}" if session else _NO_SESSION
        super().__init__(f"instance {instance!r} is already registered in group {group!r} by {holder}")
        self.group = group
        self.instance = instance
        self.session = session
        self.retriable = bool(session)  # else the node never goes away by itself


class AlreadyClaimedError(ConflictError):
    """This instance holds the partition already."""

    retriable = False

    def __init__(self, at: TopicPartition) -> None:
        super().__init__(f"{at} is already claimed by this instance")
        self.at = at


class ClaimedByOtherError(ConflictError):
    """Another instance holds the partition; `owner` says who, under which session and since when."""

    def __init__(self, at: TopicPartition, owner: Owner | UnreadableNode) -> None:
        super().__init__(f"{at} is claimed by {owner.holder}")
        self.at = at
        self.owner = owner


class SessionInUseError(ConflictError):
    """Another process uses the session that is kept in a file; two would take it from each other, without an end."""

    def __init__(self, path: str, pid: int | None) -> None:
        super().__init__(f"the session in {path} is in use by {f'process {pid}' if pid else 'another process'}")
        self.path = path
        self.pid = pid


class ReentrantCallError(ConflictError):
    """A signal handler used a claim, an instance or a generation during a call of the thread that it interrupted.

    The handler would wait for that call, and the call for the handler. Nothing was changed.
    """

    retriable = False

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} is in use by a call that this signal handler interrupted: "
            "set a flag or raise an exception in the handler instead"
        )
        self.what = what


class OffsetConflictError(ConflictError):
    """The offset is no longer what the caller had read; `found` is what is there now."""

    def __init__(self, at: TopicPartition, found: CommittedOffset | UnreadableNode | None) -> None:
        now = "is gone" if found is None else f"is now {found.shown}"
        super().__init__(f"offset of {at} was changed by somebody else and {now}")
        self.at = at
        self.found = found


class AccessError(ZkgroupsException):
    """The server knows what we want and does not let us."""


class AuthenticationError(AccessError):
    """The credentials were not accepted, or the server insists on some."""


class NoPermissionError(AccessError):
    """The ACL of the node does not allow it."""

    def __init__(self, path: str) -> None:
        super().__init__(f"no permission on {path}")
        self.path = path


class UnavailableError(ZkgroupsException):
    """No server answered, or nothing certain is known from one."""

    retriable = True


class NotConnectedError(UnavailableError):
    """No answer within the time given; what was asked for has not happened."""


class UnreachableError(NotConnectedError):
    """Every host was unknown or refused connections until `unreachable_timeout`. The rest of the time was not used."""


class DamagedAnswerError(NotConnectedError):
    """The server is not a ZooKeeper server, or its answer is damaged. Only connecting and reading raise it."""


class ReadOnlyError(UnavailableError):
    """The connection was opened for reading only, or the server has lost its quorum and only reads."""


class PastLogEndError(UnavailableError):
    """A position is past the log end that was read, once. A second reading shows whether that log end was stale."""

    def __init__(self, group: str, at: TopicPartition, position: int, end: int) -> None:
        super().__init__(
            f"offset {position} of {at}{_of_group(group)} is past the log end {end}, which may be stale: "
            "read the log end from a broker again in a second, and call start_offset with it"
        )
        self.group = group
        self.at = at
        self.position = position
        self.end = end


class SessionLostError(UnavailableError):
    """The session has ended: every claim and registration made in it is void, and nothing was written."""


class OutcomeUnknownError(UnavailableError):
    """The request was sent and its answer lost, and looking did not tell what became of it."""

    retriable = False


class MemberClosedError(ZkgroupsException):
    """The member was closed: it has left its group, and there are no more generations."""

    def __init__(self, group: str, member: str) -> None:
        super().__init__(f"member {member!r}{_of_group(group)} is closed")
        self.group = group
        self.member = member


class ClaimTimeout(ZkgroupsException):
    """The partition was not let go in the time given; `owner` is who holds it."""

    retriable = True

    def __init__(self, at: TopicPartition, owner: Owner | UnreadableNode | None, timeout: float) -> None:
        holder = "somebody who keeps coming back" if owner is None else owner.holder
        super().__init__(f"{at} was not free within {timeout:g} s: claimed by {holder}")
        self.at = at
        self.owner = owner
        self.timeout = timeout


class MalformedNodeError(ZkgroupsException):
    """A znode holds something that cannot be read as what it should be."""

    def __init__(self, node: MalformedNode) -> None:
        super().__init__(f"{node.path} cannot be read: {node.reason} ({node.shown})")
        self.node = node
        self.path = node.path
        self.data = node.data


class DamagedDataError(ZkgroupsException):
    """Files of ZooKeeper are damaged, or some are missing; `last_zxid` is up to where all is well, if that is known."""

    def __init__(self, path: str, reason: str, *, last_zxid: int | None = None) -> None:
        well = "" if last_zxid is None else f"; all is well up to zxid 0x{last_zxid:x}, which can be asked for"
        super().__init__(f"{path}: {reason}{well}")
        self.path = path
        self.reason = reason
        self.last_zxid = last_zxid


class SparkJobError(ZkgroupsException):
    """A Spark job failed for a reason that is not ours; what it was to write is not seen by anybody."""


class DamagedFileError(SparkJobError):
    """A file that Spark was to read, of a snapshot or an audit, is not as it was written."""


class SparkStoppedError(SparkJobError):
    """Spark was stopped by this program, or by its cluster, e.g. because no executor could be started."""


class TooLargeError(ZkgroupsException):
    """The request is larger than the server accepts; nothing was changed. `size` is in bytes, if known."""

    def __init__(self, message: str, *, size: int | None = None) -> None:
        super().__init__(message)
        self.size = size


class MissingDependencyError(ZkgroupsException):
    """An extra or a program that this needs is not installed; the message says what to install."""


class ServerStartError(ZkgroupsException):
    """A throw-away server did not start; the message ends with the tail of its log."""
