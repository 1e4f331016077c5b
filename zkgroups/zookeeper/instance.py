"""One member of a group: what it registers, what it claims, what it commits and lets go of.

The fence around all of it is in `registration.py`. After a check has failed, the instance looks what is still its own
(`_look_again`) and tries again with that, or raises.

Not inside the fence: an owner node that somebody deletes by hand, or a client of another kind without looking, and that
a third one then recreates.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeGuard
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from ..core.znodes.names import check_instance
from ..core.znodes.owner_codec import encode_owner
from ..core.znodes.registration_codec import decode_registration, encode_registration
from ..core.znodes.topic_partition import TopicPartition, check_at
from ..core.znodes.values import (
    ForbiddenNode,
    MalformedNode,
    Owner,
    Pattern,
    Registration,
    UnevaluableRegistration,
    UnreadableNode,
)
from ..deadline import Deadline
from ..exceptions import (
    AlreadyClaimedError,
    AlreadyRegisteredError,
    ClaimedByOtherError,
    ClaimTimeout,
    InvalidOptionError,
    MalformedNodeError,
    NoPermissionError,
    NotClaimedError,
    NotConnectedError,
    NotRegisteredError,
    OffsetWouldGoBackError,
    SessionLostError,
    TooLargeError,
    ZkgroupsException,
)
from .claim import Claim, Claims, locked
from .commit import Commit
from .reading import group_reader
from .registration import Registrar, Tenure
from .requests import bulk_read
from .requests.batching import Batch, first_batch, in_batches, try_batch
from .requests.directories import ensure_paths
from .requests.node import Node
from .requests.transaction import Check, Create, Delete, Operation, TransactionFailed
from .session.credentials import SessionCredentials
from .session.errors import translate
from .session.reentrant_locks import not_held
from .session.registry_context import RegistryContext
from .session.session import Session

if TYPE_CHECKING:
    from .group import Consumergroup

Topics = Iterable[str] | Mapping[str, int]
"""Names of topics, or names with the number of streams of each."""

_USING = threading.RLock()
_USERS: WeakKeyDictionary[Session, WeakValueDictionary[str, Instance]] = WeakKeyDictionary()
"""The objects of this process that use an id, by session and by the path of the registration."""


def is_in_use(session: Session, path: str) -> bool:
    """Whether an object of this process uses the registration at this path, in this session."""
    with _USING:
        return path in _USERS.get(session, {})


class Instance:
    """One member of a group. Make it with `group.instance()`; leaving its `with` block releases and deregisters.

    It may be used by several threads.
    """

    def __init__(self, group: Consumergroup, context: RegistryContext, id: str) -> None:
        self.group = group
        self.id = check_instance(id)
        self._context = context
        self._session = context.session
        self._registrar = Registrar(group.paths, context, id)
        self._lock = threading.RLock()  # guards what is below, and is never held during a call
        self._claims: dict[TopicPartition, Claim] = {}
        self._resumed: set[Claim] = set()  # made by a process before this one, until `claim` returns them
        self._membership = threading.RLock()  # held during calls: no claim is made while the registration is taken away
        _ALL.add(self)

    # Registration

    @property
    def registered(self) -> bool:
        """Whether it certainly is: registered by this object, in a session that lives."""
        tenure = self._registrar.tenure
        return tenure is not None and tenure.version >= 0 and self._session.alive(tenure.session_id)

    @property
    def session_id(self) -> int | None:
        """The session it registered in, None before."""
        tenure = self._registrar.tenure
        return None if tenure is None else tenure.session_id

    def register(
        self,
        topics: Topics | Registration = (),
        *,
        pattern: Pattern = Pattern.STATIC,
        timeout: float = 0.0,
        past_session: SessionCredentials | None = None,
    ) -> Registration:
        """Register what the instance subscribes to: topics, each with a number of streams if given, or expressions.

        An id that is registered already is refused, or waited for up to `timeout` seconds: after a crash the old
        registration stays until its session ends. `past_session` ends it at once, if the old one is of that session;
        nobody else's is touched.

        If this session already has the registration, because its `session_file` is from a process that was killed, the
        instance takes it over with its claims. `claims` has them, and `claim` returns them. This is refused while
        another object in this process uses the same id.
        """
        registration = topics if isinstance(topics, Registration) else _registration(topics, pattern)
        patience = Deadline.after("timeout", timeout)
        data = encode_registration(registration)
        resume = not self.registered and self._takes_id()
        try:
            tenure = self._registrar.register(data, patience=patience, past_session=past_session, resume=resume)
        except AlreadyRegisteredError as taken:
            if resume and taken.session == self._session.id and self.attach():
                with self._lock:
                    self._resumed = set(self._claims.values())
                return self.update(registration)
            raise
        finally:
            if self._registrar.tenure is None:
                self.detach()
        self._takes_id(force=True)
        with self._lock:  # claims of an earlier session ended with it
            self._claims = {at: c for at, c in self._claims.items() if c.session_id == tenure.session_id}
            kept = list(self._claims.values())
        self._forget_lost(kept)  # nothing fenced them while there was no registration
        self._registrar.adopt(Tenure(tenure.session_id), known=tenure)
        return registration

    def registration(self) -> Registration:
        """Read the registration as it stands in ZooKeeper, whoever wrote it."""
        node = self._session.get(self._registrar.path, deadline=self._context.deadline())
        if node is None:
            raise NotRegisteredError(self.group.name, self.id)
        found = decode_registration(node.path, node.data, session=node.session, version=node.version)
        match found:
            case UnevaluableRegistration():
                raise MalformedNodeError(found.node)
            case MalformedNode():
                raise MalformedNodeError(found)
            case Registration():
                return found

    def update(self, topics: Topics | Registration, *, pattern: Pattern = Pattern.STATIC) -> Registration:
        """Change what the instance subscribes to, in place: it stays registered, and keeps its claims."""
        registration = topics if isinstance(topics, Registration) else _registration(topics, pattern)
        data = encode_registration(registration)
        while True:
            tenure = self._registrar.require()
            try:
                self._registrar.rewrite(data, tenure)
                return registration
            except TransactionFailed as failure:
                self._look_again(tenure, failure)

    def deregister(self) -> None:
        """Release everything and take the registration away; nothing happens if it is gone already.

        Only what this session made is touched (rule 2).
        """
        with self._joining_or_leaving():
            with self._lock:
                claims = list(self._claims.values())
            with contextlib.suppress(SessionLostError):  # the server has taken it all away
                self._let_go(claims)
                self._drop_registration()
                self._registrar.sweep_all()
            self._registrar.forget()
            self._forget(claims)
        self.detach()

    def _joining_or_leaving(self) -> Any:
        """The lock for calls between which the registration must not change."""
        return not_held(self._membership, f"instance {self.id!r}")

    def after_fork(self) -> None:
        """In a fork: the threads that hold the locks may not run here."""
        self._lock, self._membership = threading.RLock(), threading.RLock()
        self._registrar.after_fork()

    def _takes_id(self, *, force: bool = False) -> bool:
        """Use the id in this session; False if another object of this process does."""
        with _USING:
            if force:
                _USERS.setdefault(self._session, WeakValueDictionary())[self._registrar.path] = self
            return (
                _USERS.setdefault(self._session, WeakValueDictionary()).setdefault(self._registrar.path, self) is self
            )

    def detach(self) -> None:
        """Let other objects of this process use the id."""
        with _USING:
            users = _USERS.get(self._session, WeakValueDictionary())
            if users.get(self._registrar.path) is self:
                del users[self._registrar.path]

    def _drop_registration(self) -> None:
        while (tenure := self._registrar.tenure) is not None:
            try:
                self._registrar.drop(tenure)
                return
            except TransactionFailed as failure:
                self._look_again(tenure, failure)

    # Claiming

    @property
    def claims(self) -> Mapping[TopicPartition, Claim]:
        """What it holds at this moment."""
        with self._lock:
            return MappingProxyType({at: claim for at, claim in self._claims.items() if self._is_current(claim)})

    def claim(self, at: TopicPartition, *, timeout: float | None = None) -> Claim:
        """Take a partition, also of a topic that ZooKeeper does not know.

        At once, or `ClaimedByOtherError`; with `timeout`, after waiting for its owner to let go, or `ClaimTimeout`.
        """
        return self.claim_many([at], timeout=timeout)[at]

    def claim_many(
        self,
        partitions: Iterable[TopicPartition],
        *,
        timeout: float | None = None,
        streams: Mapping[TopicPartition, int] | None = None,
    ) -> Claims:
        """Take several partitions, all or none; as `claim` otherwise.

        With `streams`, each owner node also names the stream of the instance that reads the partition, as Scala's
        members do. Without, it carries the bare id, as kazoo-go expects; but Kafka's own ConsumerGroupCommand fails on
        an id without a dash.
        """
        numbers = streams or {}
        wanted = {check_at(at): encode_owner(self.id, numbers.get(at)) for at in partitions}
        patience = Deadline.after("timeout", 0.0 if timeout is None else timeout)
        while True:
            try:
                return self._claim_now(wanted)
            except ClaimedByOtherError as taken:
                if timeout is None:
                    raise
                self._await_free(taken, patience)

    def _claim_now(self, wanted: Mapping[TopicPartition, bytes]) -> Claims:
        self._registrar.require()
        taken: list[Claim] = []
        resumed = {at: claim for at, claim in self.claims.items() if at in wanted and claim in self._resumed}
        partitions = [at for at in wanted if at not in resumed]
        units = [[self._create_owner(at, wanted[at])] for at in partitions]

        def take(batch: Batch[Create]) -> None:
            some = partitions[len(taken) : len(taken) + len(batch)]
            with self._joining_or_leaving():
                taken.extend(self._claim_batch(some, [create for [create] in batch]))

        try:
            in_batches(self._session, units, take, overhead=[Check(self._registrar.path)])
        except BaseException as error:
            self._take_back(taken, error)
            raise
        with self._lock:
            self._resumed -= set(resumed.values())
        return Claims(self, [*resumed.values(), *taken])

    def _take_back(self, taken: Sequence[Claim], error: BaseException) -> None:
        """After an error: release the claims made until then. Those that cannot be released now are swept later."""
        try:
            self._let_go(taken)
        except ZkgroupsException as trouble:
            error.add_note(
                f"and {self._abandon(taken)} of {len(taken)} partitions claimed before could not be released: "
                f"{trouble}; the next claim_many(), release_all() or deregister() releases them"
            )
        except BaseException:
            self._abandon(taken)
            raise

    def _abandon(self, claims: Sequence[Claim]) -> int:
        """Hold these no more, and have their owner nodes swept later. Return the number of nodes that may be left."""
        with self._lock:
            left = [claim for claim in claims if self._claims.get(claim.at) is claim]
        self._registrar.leave({self.group.paths.owner(claim.at): claim.data for claim in left})
        self._forget(left)
        return len(left)

    def _create_owner(self, at: TopicPartition, data: bytes) -> Create:
        return Create(self.group.paths.owner(at), data, True, self._context.acls.ephemerals)

    def _claim_batch(self, partitions: Sequence[TopicPartition], creates: Sequence[Create]) -> list[Claim]:
        while True:
            tenure = self._registrar.require()
            made = zip(partitions, creates, strict=True)
            claims = {at: Claim(self, at, tenure.session_id, create.data) for at, create in made}
            try:
                operations: list[Operation] = [*self._registrar.check(tenure), *creates]
                self._registrar.transact(operations, tenure, then=partial(self._remember, claims))
                return list(claims.values())
            except TransactionFailed as failure:
                self._claim_failed(partitions, failure, tenure)

    def _remember(self, claims: Mapping[TopicPartition, Claim]) -> None:
        with self._lock:
            self._claims.update(claims)

    def _claim_failed(self, partitions: Sequence[TopicPartition], failure: TransactionFailed, tenure: Tenure) -> None:
        """Make a new attempt worth while, or raise what stands in its way."""
        if isinstance(failure.operation, Check):
            self._look_again(tenure, failure)
        elif isinstance(failure.error, NoNodeError):
            topics = (self.group.paths.owned_topic(at.topic) for at in partitions)
            ensure_paths(self._context, topics, session_id=tenure.session_id)
        elif isinstance(failure.error, NodeExistsError):
            self._refuse_foreign(partitions[failure.index - 1], failure.operation, tenure)
        else:
            raise translate(failure.error, failure.operation.path) from failure.error

    def _refuse_foreign(self, at: TopicPartition, create: Operation, tenure: Tenure) -> None:
        """Raise who holds it, unless it was released meanwhile, or left behind by an earlier attempt."""
        node = self._session.get(create.path, deadline=self._context.deadline())
        if node is None or self._registrar.sweep(node, tenure):
            return
        ours = node.session == tenure.session_id
        if ours and (at in self.claims or (isinstance(create, Create) and node.data == create.data)):
            raise AlreadyClaimedError(at)
        raise ClaimedByOtherError(at, group_reader.owner(at.topic, str(at.partition), node))

    def _await_free(self, taken: ClaimedByOtherError, patience: Deadline) -> None:
        path, timeout = taken.owner.path, self._context.timeout
        if patience.passed or not self._session.wait_deleted(path, deadline=patience, timeout=timeout):
            raise ClaimTimeout(taken.at, taken.owner, patience.seconds) from taken

    # Letting go

    def release(self, *partitions: TopicPartition) -> None:
        """Let go of the given partitions. Only what this session made is touched."""
        with self._lock:
            held = dict(self._claims)
        missing = [at for at in partitions if at not in held]
        if missing:
            raise NotClaimedError(missing[0])
        self._let_go([held[at] for at in dict.fromkeys(partitions)])

    def release_all(self) -> None:
        """Let go of everything, and stay registered."""
        with self._lock:
            held = list(self._claims.values())
        self._let_go(held)
        with self._joining_or_leaving(), contextlib.suppress(SessionLostError):
            self._registrar.sweep_all()

    def _let_go(self, claims: Sequence[Claim]) -> None:
        """For claims: release those that are still current, in as few transactions as the limit allows.

        A commit that is under way is waited for: once the owner node is gone, the next one's looks like it.
        """
        with locked(claims):
            self._delete_current(claims)

    def _delete_current(self, claims: Sequence[Claim]) -> None:
        # A release whose outcome nobody learned may have been carried out, and the node be another's by now.
        denied = self._forget_lost([claim for claim in claims if claim.doubtful])
        while True:
            with self._lock:
                current = [claim for claim in claims if self._is_current(claim) and claim not in denied]
            tenure = self._registrar.tenure
            if not current or tenure is None:
                break
            try:
                self._delete_some(current, tenure)
            except SessionLostError:
                self._forget(current)  # the server has taken them away
            except TransactionFailed as failure:
                denied |= self._look_again(tenure, failure)
        for claim in denied & set(claims):
            raise NoPermissionError(self.group.paths.owner(claim.at))

    def _delete_some(self, claims: Sequence[Claim], tenure: Tenure) -> None:
        """Delete as many owner nodes as go into one transaction, and forget these claims."""
        guard = self._registrar.check(tenure)
        units = ([Delete(self.group.paths.owner(claim.at), claim.version)] for claim in claims)
        batch = first_batch(self._session, units, overhead=guard)
        deleted = claims[: len(batch)]
        operations: list[Operation] = [*guard, *(delete for [delete] in batch)]

        def transact() -> None:
            with _doubted(deleted):
                self._registrar.transact(operations, tenure, then=partial(self._forget, deleted))

        try_batch(transact, batch)

    def _forget(self, claims: Iterable[Claim]) -> None:
        with self._lock:
            for claim in claims:
                if self._claims.get(claim.at) is claim:
                    del self._claims[claim.at]

    # Holding and committing

    def _holds(self, claim: Claim) -> bool:
        """For claims: whether it is certainly still held, by what is known here."""
        with self._lock:
            current = self._is_current(claim) and not claim.doubtful
        return current and self._session.alive(claim.session_id)

    def certain_until(self, claim: Claim) -> float:
        """Until when, on the clock of `uptime`, the session of a claim is certain to live without another proof."""
        return self._session.certain_until(claim.session_id)

    def _is_current(self, claim: Claim) -> bool:
        tenure = self._registrar.tenure
        return (
            tenure is not None
            and claim.session_id == tenure.session_id == self._session.id
            and self._claims.get(claim.at) is claim
        )

    def _verify(self, claims: Sequence[Claim]) -> list[Claim]:
        """For claims: those whose owner node carries our id and our session, by asking (rule 1)."""
        return self._ask(claims)[0]

    def _ask(self, claims: Sequence[Claim]) -> tuple[list[Claim], set[Claim]]:
        """Those that are ours, and those whose owner node may not be read."""
        paths = [self.group.paths.owner(claim.at) for claim in claims]
        found: list[Claim] = []
        denied: set[Claim] = set()
        for claim, node in zip(claims, bulk_read.nodes(self._context, paths), strict=True):
            if isinstance(node, ForbiddenNode):
                denied.add(claim)
            elif node is not None and node.session == claim.session_id and node.data == claim.data:
                claim.version = node.version
                found.append(claim)
        with self._lock:
            current = [claim for claim in found if self._is_current(claim)]
            return current, {claim for claim in denied if self._is_current(claim)}

    def _forget_lost(self, claims: Sequence[Claim]) -> set[Claim]:
        """Forget those that are not ours any more; what may not be read can only be released, and is returned."""
        kept, denied = self._ask(claims)
        for claim in denied:
            claim.doubtful = True
        self._forget(set(claims) - set(kept) - denied)
        return denied

    def _commit(self, offsets: Mapping[Claim, int], *, backward: bool | Mapping[TopicPartition, int] = False) -> None:
        """For claims: write offsets under the fence.

        Who falls behind because a successor went on is told of the lost session, not of an offset that would go back.
        """
        claims, left = list(offsets), dict(offsets)
        with locked(claims):
            while left:
                tenure = self._tenure_for(claims)
                commit = Commit(self.group.paths, self._context, tenure, self._registrar.check(tenure))
                try:
                    commit.write(left, backward=backward)
                except TransactionFailed as failure:
                    self._look_again(tenure, failure)
                except OffsetWouldGoBackError:
                    self._tenure_for(claims)
                    raise

    def _tenure_for(self, claims: Sequence[Claim]) -> Tenure:
        """The registration under which all of the claims are held; else say which is not, and why."""
        for claim in claims:
            if self._session.id != claim.session_id:
                raise SessionLostError(f"the session of the claim on {claim.at} has ended, nothing was changed")
        tenure = self._registrar.require()
        with self._lock:
            for claim in claims:
                if claim.doubtful or not self._is_current(claim):
                    raise NotClaimedError(claim.at)
        return tenure

    def _look_again(self, tenure: Tenure, failure: TransactionFailed) -> set[Claim]:
        """A check of ours has failed: find out what is still ours, and which claims may not be read.

        The registration is read first and the owners after it. Who takes a claim away writes the registration in the
        same transaction: so what is still ours after version v was read is ours as long as the version is v.
        """
        if not isinstance(failure.error, NoNodeError | BadVersionError):
            raise translate(failure.error, failure.operation.path) from failure.error
        seen = self._registrar.look(tenure)
        with self._lock:
            claims = list(self._claims.values())
        denied = self._forget_lost(claims)
        self._registrar.adopt(seen, known=tenure)
        return denied

    # What a member asks that shares partitions with others

    def holding(
        self, partitions: Iterable[TopicPartition], ids: Collection[str]
    ) -> tuple[dict[TopicPartition, Claim], dict[TopicPartition, Owner | UnreadableNode]]:
        """Ask who holds these partitions, and what this instance holds: what is its own, and who has the others.

        What is its own becomes a claim also where this object did not know of it: an answer was lost, or the process
        that made it has gone and left its session to us. `ids` are all that are registered: an owner's text may be the
        id of one with the number of a stream, or the whole id of another.
        """
        tenure = self._registrar.require()
        with self._lock:
            known = dict(self._claims)
        asked = list({**dict.fromkeys(partitions), **dict.fromkeys(known)})
        mine: dict[TopicPartition, Claim] = {}
        others: dict[TopicPartition, Owner | UnreadableNode] = {}
        found = bulk_read.nodes(self._context, [self.group.paths.owner(at) for at in asked])
        for at, node in zip(asked, found, strict=True):
            if node is None:
                continue
            if isinstance(node, ForbiddenNode):
                others[at] = node
                continue
            owner = group_reader.owner(at.topic, str(at.partition), node)
            kept = self._kept(known.get(at), node, tenure)
            if kept is not None:  # whatever else its text may mean
                mine[at] = kept
            elif self._is_ours(owner, tenure, ids):
                mine[at] = Claim(self, at, tenure.session_id, node.data, version=node.version)
            else:
                others[at] = owner
        with self._lock:
            for at, claim in known.items():
                if at not in mine and self._claims.get(at) is claim:
                    del self._claims[at]
            self._claims.update(mine)
        self._registrar.keep(self.group.paths.owner(at) for at in mine)
        return mine, others

    def _is_ours(self, owner: Owner | UnreadableNode, tenure: Tenure, ids: Collection[str]) -> TypeGuard[Owner]:
        if not isinstance(owner, Owner) or owner.session != tenure.session_id:
            return False
        if owner.id in ids:  # it may be the whole id of one, and of another with the number of a stream
            return (owner.instance({*ids} - {owner.id}) or owner.id) == self.id
        return owner.instance(ids) == self.id

    def _kept(self, claim: Claim | None, node: Node, tenure: Tenure) -> Claim | None:
        """The claim that is known, if it is what is there."""
        if claim is None or not claim.session_id == node.session == tenure.session_id or claim.data != node.data:
            return None
        claim.version, claim.doubtful = node.version, False
        return claim

    @property
    def alive(self) -> bool:
        """Whether the session that it registered in is certain to live: whatever it holds is its own."""
        tenure = self._registrar.tenure
        return tenure is not None and self._session.alive(tenure.session_id)

    def is_registered(self) -> bool:
        """Ask whether the registration is still there; one that is gone can be recreated, and claims be kept."""
        try:
            tenure = self._registrar.require()
        except NotRegisteredError:
            return False
        seen = self._registrar.look(tenure)
        if seen.version < 0:
            self._registrar.adopt(seen, known=tenure)
        return seen.version >= 0

    def attach(self) -> bool:
        """Take over the registration of this id that this session has made, in another process or before a lapse.

        False if there is none. With it come the claims, whatever they are on. Refused while another object in this
        process uses the id: both would hold the same.
        """
        if not self._takes_id():
            raise AlreadyRegisteredError(self.group.name, self.id, self._session.id or -1)
        if not self._registrar.attach():
            return False
        ids = set(self._session.children(self.group.paths.ids, deadline=self._context.deadline()) or ())
        tenure = self._registrar.require()
        self.holding([owner.at for owner in self.group.owners() if self._is_ours(owner, tenure, ids)], ids)
        return True

    # Leaving

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.deregister()
        except ZkgroupsException as trouble:
            if error is None:
                raise
            error.add_note(f"and deregistering {self.id!r} failed: {trouble}")

    def __repr__(self) -> str:
        return f"<Instance {self.id!r} of group {self.group.name!r}, {'registered' if self.registered else 'idle'}>"


@contextlib.contextmanager
def _doubted(claims: Sequence[Claim]) -> Iterator[None]:
    """Do not count claims as held while they are released: the next owner may claim them before the answer arrives.

    If the outcome is unknown, they can only be released again.
    """
    certain = [claim for claim in claims if not claim.doubtful]
    for claim in claims:
        claim.doubtful = True
    try:
        yield
    except (TransactionFailed, NotConnectedError, TooLargeError):  # nothing was changed
        for claim in certain:
            claim.doubtful = False
        raise


_ALL: WeakSet[Instance] = WeakSet()


def _after_fork() -> None:
    global _USING
    _USING = threading.RLock()
    for instance in list(_ALL):
        instance.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def _registration(topics: Topics, pattern: Pattern) -> Registration:
    """What is written: one stream for each topic unless said otherwise."""
    if isinstance(topics, str):
        topics = [topics]  # a name is iterable too, letter by letter
    if not isinstance(topics, Iterable):
        raise InvalidOptionError("topics", topics, "it must be names of topics")
    streams = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics, 1)
    return Registration(streams, pattern, timestamp=datetime.now(UTC).replace(microsecond=0))  # nodes store seconds
