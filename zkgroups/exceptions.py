"""All errors of zkgroups: `from zkgroups.exceptions import ClaimedByOtherError`.

Catch a class in the middle of the tree to handle a whole kind of failure. The attribute `retriable` is True if the same
call may succeed later. The objects that an error concerns are attributes, too, such as `group` and `instances` of a
`GroupInUseError`.

ZkgroupsException
├── InvalidInputError (ValueError)      an argument is invalid; no request was sent
│   ├── InvalidNameError                a name cannot be the name of a znode
│   └── InvalidOptionError              an option is out of bounds
├── NotFoundError
│   ├── NoRegistryError                 the chroot does not exist, or has neither groups nor brokers
│   ├── GroupNotFoundError
│   ├── NotRegisteredError              the instance has no registration in this session
│   ├── NotClaimedError                 the caller does not hold the partition
│   ├── UnknownPartitionError           the brokers have no such topic or partition
│   ├── GenerationEndedError            the generation is over: others may hold its partitions
│   └── NoGroupError                    a member without a group cannot commit
├── RefusedError                        the operation would hurt other clients or lose data
│   ├── GroupInUseError                 instances are registered
│   ├── GroupExistsError
│   ├── OffsetWouldGoBackError          not allowed without `backward`
│   ├── OffsetOutOfRangeError
│   │   └── CommittedOutOfRangeError    a member cannot start at the committed offset
│   ├── BrokersTooOldError              the brokers' release does not support the operation
│   ├── ZooKeeperTooOldError            the same for the ZooKeeper server
│   ├── GuardFailedError                an administrative operation found another state than expected
│   ├── NotSharedError                  Spark's workers and driver might share no file system
│   ├── GroupMigratedError              the group is being migrated to Kafka-native offsets, or was
│   │   └── GroupMovedError             the same by `zkgroups migrate switch`, while its members work
│   └── InterruptedDeleteError          a group too large for one transaction is partly deleted
├── ConflictError                       the state has changed, or belongs to somebody else
│   ├── AlreadyRegisteredError
│   ├── AlreadyClaimedError             this instance already has the claim
│   ├── ClaimedByOtherError             a claim without a timeout was refused; see `owner`
│   ├── SessionInUseError               another process uses the session file
│   ├── ReentrantCallError              a signal handler interrupted a call that it would have to wait for
│   └── OffsetConflictError             the offset changed since it was read
├── AccessError
│   ├── AuthenticationError             the credentials were not accepted
│   ├── CertificateError                TLS failed: one side did not accept the other's certificate
│   └── NoPermissionError               the ACL does not allow the operation
├── UnavailableError                    no server answered, or the outcome is unknown
│   ├── NotConnectedError               no answer within the timeout
│   │   ├── UnreachableError            every host refused connections, so the wait was cut short
│   │   └── DamagedAnswerError          not a ZooKeeper server, or a damaged answer
│   ├── ReadOnlyError                   the connection or the server does not accept writes
│   ├── PastLogEndError                 the log end may be stale and must be read again
│   ├── FetchFailedError                a partition cannot be read now
│   ├── SessionLostError                all claims and registrations of the session are void
│   └── OutcomeUnknownError             the request was sent, but its outcome is unknown
├── MemberClosedError                   the member has left its group
├── HandlerFailedError                  the handler of a message has failed for the last time
├── ClaimTimeout                        a claim with a timeout was not granted in time; see `owner`
├── MalformedNodeError                  a znode cannot be decoded
├── DamagedDataError                    files of a ZooKeeper server are damaged or incomplete
├── StorageError                        files on the local disk could not be read or written
├── SparkJobError                       a Spark job failed; its output is not visible
│   ├── DamagedFileError                a file changed since it was written
│   └── SparkStoppedError               Spark was stopped by its cluster or its user
├── TooLargeError                       the request exceeds the server's size limit
├── MissingDependencyError              an extra or a program is not installed
└── ServerStartError                    a test server did not start; carries the end of its log
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from .input_errors import InvalidInputError as InvalidInputError
from .input_errors import InvalidNameError as InvalidNameError
from .input_errors import InvalidOptionError as InvalidOptionError
from .input_errors import ZkgroupsException as ZkgroupsException

if TYPE_CHECKING:
    from .core.znodes.topic_partition import TopicPartition
    from .core.znodes.values import CommittedOffset, MalformedNode, Owner, UnreadableNode


def _of_group(group: str) -> str:
    """Return how a message names the group: not at all if the name is empty, as for a member without a group."""
    return f" of group {group!r}" if group else ""


def _and_more(also: Collection[TopicPartition]) -> str:
    return f" (and {len(also)} more)" if also else ""


class NotFoundError(ZkgroupsException):
    """The requested object does not exist."""


class NoRegistryError(NotFoundError):
    """The chroot does not exist, or contains neither groups nor brokers."""


class GroupNotFoundError(NotFoundError):
    """The group has no znode."""

    def __init__(self, group: str) -> None:
        super().__init__(f"group {group!r} does not exist: check the name and the address")
        self.group = group


class NotRegisteredError(NotFoundError):
    """The instance has no registration that belongs to this session."""

    def __init__(self, group: str, instance: str) -> None:
        cure = "register it first, or give the id of a registered instance"
        super().__init__(f"instance {instance!r} is not registered in group {group!r}: {cure}")
        self.group = group
        self.instance = instance


class NotClaimedError(NotFoundError):
    """The caller does not hold the partition: it was released, taken away, or never claimed.

    `also` has the other partitions of the call that the caller does not hold, as far as known.
    """

    def __init__(
        self,
        at: TopicPartition,
        reason: str = "is not claimed by this instance: stop working on it",
        *,
        also: Collection[TopicPartition] = (),
    ) -> None:
        super().__init__(f"{at}{_and_more(also)} {reason}")
        self.at = at
        self.also = frozenset(also)


class UnknownPartitionError(NotFoundError):
    """The brokers have no such topic, or fewer partitions of it. Nothing was written."""

    def __init__(self, at: TopicPartition) -> None:
        super().__init__(f"the brokers have no partition {at}: check the topic and its number of partitions")
        self.at = at


class GenerationEndedError(NotFoundError):
    """The generation has ended, so other members may hold its partitions. Nothing was changed."""

    def __init__(self, group: str, number: int) -> None:
        super().__init__(f"generation {number}{_of_group(group)} has ended: use the next generation")
        self.group = group
        self.number = number


class NoGroupError(NotFoundError):
    """A member without a group cannot commit offsets: your program must store them elsewhere."""

    def __init__(self) -> None:
        super().__init__("this member has no group to commit offsets to: store them elsewhere, or use a Member")


class RefusedError(ZkgroupsException):
    """The operation is possible, but would hurt other clients or lose data."""


class GroupInUseError(RefusedError):
    """The group has registered instances, or owners with a live session."""

    def __init__(self, group: str, instances: Sequence[str]) -> None:
        shown = ", ".join(instances[:3]) + (f" and {len(instances) - 3} more" if len(instances) > 3 else "")
        users = shown or "an instance that has just registered"
        super().__init__(f"group {group!r} is in use by {users}: stop its instances first")
        self.group = group
        self.instances = tuple(instances)


class GroupExistsError(RefusedError):
    """The group already exists. Copying offsets into it would mix them with its own."""

    def __init__(self, group: str) -> None:
        super().__init__(f"group {group!r} already exists: choose another name")
        self.group = group


class OffsetWouldGoBackError(RefusedError):
    """The offset is lower than the committed offset, and the caller did not allow that.

    `also` has the other partitions of the call whose offsets would go back, as far as known.
    """

    def __init__(
        self,
        group: str,
        at: TopicPartition,
        committed: int,
        offset: int,
        *,
        cure: str = "",
        also: Collection[TopicPartition] = (),
    ) -> None:
        cure = cure or f"continue at {committed}; only a call with backward=True may go back"
        super().__init__(
            f"offset of {at}{_and_more(also)} in group {group!r} is {committed} and would go back to {offset}: {cure}"
        )
        self.group = group
        self.at = at
        self.committed = committed
        self.offset = offset
        self.also = frozenset(also)


class OffsetOutOfRangeError(RefusedError):
    """The offset is outside the range it was checked against."""

    def __init__(self, at: TopicPartition, offset: int, start: int, end: int) -> None:
        super().__init__(f"offset {offset} of {at} is outside {start} to {end}: choose an offset in this range")
        self.at = at
        self.offset = offset
        self.start = start
        self.end = end


class CommittedOutOfRangeError(OffsetOutOfRangeError):
    """The committed offset is outside of the log, so a member cannot start there. Nothing was changed."""

    def __init__(self, group: str, at: TopicPartition, committed: int, start: int, end: int) -> None:
        import shlex

        super().__init__(at, committed, start, end)
        ways = 'pass out_of_range="earliest" or "latest" to the member'
        if group:
            ways += f", or move the offset with `zkgroups offsets reset {shlex.quote(group)}`"
        self.args = (
            f"committed offset {committed} of {at}{_of_group(group)} is outside of the log ({start} to {end}): {ways}",
        )
        self.group = group
        self.committed = committed


class BrokersTooOldError(RefusedError):
    """The brokers' release does not support the operation, or would misunderstand it. Nothing was changed."""


class ZooKeeperTooOldError(RefusedError):
    """The ZooKeeper server's release does not support the operation. Nothing was changed."""


class GuardFailedError(RefusedError):
    """An administrative operation found another state than it expected. Nothing was changed."""


class GroupMigratedError(RefusedError):
    """The group has a migration mark, so members cannot join it. A malformed mark counts, too."""

    def __init__(self, group: str, what: str, *, plan: str | None = None, target: str | None = None) -> None:
        import shlex

        way = f"`zkgroups migrate {'unmark' if plan else 'unmark --force'} {shlex.quote(group)}`"
        ways = f"`zkgroups migrate rollback` or {way}" if plan else way
        super().__init__(f"group {group!r} {what}: run {ways} to let members join again")
        self.group = group
        self.plan = plan
        self.target = target


class GroupMovedError(GroupMigratedError):
    """`zkgroups migrate switch` has moved the group to the brokers, or is moving it there or back (`moving`)."""

    def __init__(self, group: str, *, moving: bool) -> None:
        import shlex

        command = f"`zkgroups migrate switch {shlex.quote(group)}"
        super().__init__(group, "was moved")
        self.moving = moving
        if moving:
            text = f"is being moved between ZooKeeper and the brokers: wait until {command}` has finished"
        else:
            text = f"was moved to the brokers: join it there with a Kafka client, or run {command} --to zookeeper`"
        self.args = (f"group {group!r} {text}",)


class NotSharedError(RefusedError):
    """Spark's workers wrote, or may write, to files that its driver cannot see. No output was marked as complete."""

    def __init__(self, destination: str, reason: str, more: str = "") -> None:
        cure = "use hdfs://, s3a:// or a mount that all machines share"
        super().__init__("; ".join(filter(None, [f"{destination} was not written: {reason}", cure, more])))
        self.destination = destination


class InterruptedDeleteError(RefusedError):
    """A group too large for one transaction is partly deleted. Each remaining topic is complete."""

    def __init__(self, group: str, left: Sequence[str], because: str) -> None:
        topics = "1 topic" if len(left) == 1 else f"{len(left)} topics"
        super().__init__(
            f"group {group!r} is partly deleted, with {topics} remaining ({because}); delete the group again to finish"
        )
        self.group = group
        self.left = tuple(left)


class ConflictError(ZkgroupsException):
    """Another client has the object, or changed it meanwhile."""

    retriable = True


_DOCTOR = "run `zkgroups doctor`"

_NO_SESSION = "a node that belongs to no session: `zkgroups doctor --repair --execute` can delete it"


class AlreadyRegisteredError(ConflictError):
    """The id is already registered, by another session or by another object of this session."""

    def __init__(self, group: str, instance: str, session: int) -> None:
        shown = f"session {session & 0xFFFF_FFFF_FFFF_FFFF:#x}: stop that instance, or choose another id"
        holder = shown if session else _NO_SESSION
        super().__init__(f"instance {instance!r} is already registered in group {group!r} by {holder}")
        self.group = group
        self.instance = instance
        self.session = session
        self.retriable = bool(session)  # otherwise the node stays


class AlreadyClaimedError(ConflictError):
    """This instance already holds the partition."""

    retriable = False

    def __init__(self, at: TopicPartition) -> None:
        super().__init__(f"{at} is already claimed by this instance: use the claim in instance.claims")
        self.at = at


class ClaimedByOtherError(ConflictError):
    """Another instance holds the partition. `owner` has its id, its session and the time of the claim."""

    def __init__(self, at: TopicPartition, owner: Owner | UnreadableNode) -> None:
        cure = "wait for its release, or claim another partition" if owner.session else _DOCTOR
        super().__init__(f"{at} is claimed by {owner.holder}: {cure}")
        self.at = at
        self.owner = owner


class SessionInUseError(ConflictError):
    """Another process uses the session in this file. Two processes would keep taking it from each other."""

    def __init__(self, path: str, pid: int | None) -> None:
        user = f"process {pid}" if pid else "another process"
        super().__init__(f"the session in {path} is in use by {user}: give each process a file of its own")
        self.path = path
        self.pid = pid


class ReentrantCallError(ConflictError):
    """A signal handler used a claim, an instance or a generation that the interrupted call was using.

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
    """The offset was changed since the caller read it. `found` is the current offset."""

    def __init__(self, at: TopicPartition, found: CommittedOffset | UnreadableNode | None) -> None:
        change = "deleted by another client" if found is None else f"changed by another client and is now {found.shown}"
        super().__init__(f"offset of {at} was {change}: check it before you try again")
        self.at = at
        self.found = found


class AccessError(ZkgroupsException):
    """The server does not allow the operation."""


class AuthenticationError(AccessError):
    """The credentials were not accepted, or the server requires some."""


class CertificateError(AccessError):
    """TLS failed: one side did not accept the other's certificate, or there was no common version or cipher."""


_LOG_IN: Final = "log in as a user whom its ACL allows, with --digest-user or --sasl-user (in Python `auth`)"


class NoPermissionError(AccessError):
    """An ACL does not allow the operation. `path` is a znode, or on the brokers a group, topic or partition."""

    def __init__(self, path: str, *, cure: str = _LOG_IN) -> None:
        super().__init__(f"no permission on {path}: {cure}")
        self.path = path


class UnavailableError(ZkgroupsException):
    """No server could carry out the request, the session is lost, the log end is stale, or the outcome is unknown."""

    retriable = True


class NotConnectedError(UnavailableError):
    """No answer within the timeout. The operation was not carried out."""


class UnreachableError(NotConnectedError):
    """Every host was unknown or refused connections for `unreachable_timeout`. zkgroups did not wait any longer."""


class DamagedAnswerError(NotConnectedError):
    """The server is not a ZooKeeper server, or its answer is damaged. Only connecting and reading raise it."""


class ReadOnlyError(UnavailableError):
    """The connection is read-only, or the server has lost its quorum."""


class PastLogEndError(UnavailableError):
    """A position is past the log end, which may be stale. Read the log end again."""

    def __init__(self, group: str, at: TopicPartition, position: int, end: int) -> None:
        super().__init__(
            f"offset {position} of {at}{_of_group(group)} is past the log end {end}, which may be stale: "
            "wait a second, read the log end from a broker again, and pass it to start_offset"
        )
        self.group = group
        self.at = at
        self.position = position
        self.end = end


class FetchFailedError(UnavailableError):
    """The messages of a partition cannot be read now. A consumer tries again, and reads its other partitions."""

    def __init__(self, at: TopicPartition, reason: str) -> None:
        super().__init__(f"fetching {at} failed, trying again: {reason}")
        self.at = at
        self.reason = reason


class SessionLostError(UnavailableError):
    """The session has expired: its claims and registrations are void. Nothing was written."""


class OutcomeUnknownError(UnavailableError):
    """The request was sent and its answer was lost, and reading the nodes did not show the outcome."""

    retriable = False


class MemberClosedError(ZkgroupsException):
    """The member is closed: it has left its group and starts no more generations."""

    def __init__(self, group: str, member: str) -> None:
        super().__init__(f"member {member!r}{_of_group(group)} is closed: create a new one")
        self.group = group
        self.member = member


class HandlerFailedError(ZkgroupsException):
    """The handler of a message has failed for the last time. The handler's error is the `__cause__`.

    The message, and all after it, are not committed: the next consumer handles it again.
    """

    def __init__(self, at: TopicPartition, offset: int, attempts: int) -> None:
        cure = "correct the handler, or pass then=DeadLetter(topic) to run"
        super().__init__(f"the handler failed at offset {offset} of {at} in all {attempts} attempts: {cure}")
        self.at = at
        self.offset = offset
        self.attempts = attempts


class ClaimTimeout(ZkgroupsException):
    """The partition was not released within the timeout. `owner` is its current owner."""

    retriable = True

    def __init__(self, at: TopicPartition, owner: Owner | UnreadableNode | None, timeout: float) -> None:
        reason = "other instances claimed it repeatedly" if owner is None else f"claimed by {owner.holder}"
        cure = "wait longer, or stop its owner" if owner is None or owner.session else _DOCTOR
        super().__init__(f"{at} was not free within {timeout:g} s: {reason}; {cure}")
        self.at = at
        self.owner = owner
        self.timeout = timeout


class MalformedNodeError(ZkgroupsException):
    """A znode holds data that cannot be decoded."""

    def __init__(self, node: MalformedNode, *, cure: str = f"{_DOCTOR} to see what to do") -> None:
        super().__init__(f"{node.path} is malformed: {node.reason} ({node.shown}); {cure}")
        self.node = node
        self.path = node.path
        self.data = node.data


class DamagedDataError(ZkgroupsException):
    """Files of a ZooKeeper server are damaged or missing. `last_zxid` is the last intact transaction, if known."""

    def __init__(self, path: str, reason: str, *, last_zxid: int | None = None) -> None:
        intact = "" if last_zxid is None else f"the data is intact up to zxid 0x{last_zxid:x}: read up to it, or "
        super().__init__(f"{path}: {reason}; {intact}use the files of another server, or a backup")
        self.path = path
        self.reason = reason
        self.last_zxid = last_zxid


class StorageError(ZkgroupsException):
    """A file or folder on the local disk could not be read or written. Incomplete files are not visible."""


class SparkJobError(ZkgroupsException):
    """A Spark job failed for a reason outside of zkgroups. Its output is not visible."""


class DamagedFileError(SparkJobError):
    """A file of a snapshot or an audit was changed or damaged after it was written."""


class SparkStoppedError(SparkJobError):
    """Spark was stopped by this program, or by its cluster, e.g. because no executor could be started."""


class TooLargeError(ZkgroupsException):
    """The request is larger than the server accepts. Nothing was changed. `size` is in bytes, if known."""

    def __init__(self, message: str, *, size: int | None = None) -> None:
        super().__init__(message)
        self.size = size


class MissingDependencyError(ZkgroupsException):
    """An extra or a program is not installed. The message says what to install."""


class ServerStartError(ZkgroupsException):
    """A test server did not start. The message ends with the last lines of its log."""
