"""Watch a group: its members, owners or offsets.

A `Watch` works in the thread that iterates over it, or in its own thread with `follow`. On kazoo's threads, it only
records which paths have changed. So no user code runs there, and no request is sent from there (rule 8).

A watch in ZooKeeper fires once, and is lost with the connection, the session and the node. When it fires, the node is
read and watched again. If the session has one watch on all groups (`requests/watches.py`), nodes are only read,
and no other watches are set. After a lost connection, the whole tree is read and compared with the last reports. A
`RESCANNED` change announces that, because several changes of one node then show up as one.

Nothing blocks in between: many requests are in flight at once, and `next` continues where the last call ran out of
time. So `next` and `close` return in time, whatever the connection does.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

from kazoo.exceptions import KazooException, NoAuthError, NoNodeError

from ..core.znodes.group_description import RegisteredInstance
from ..core.znodes.paths import CONSUMERS, GroupPaths, Part, join, parent
from ..core.znodes.values import CommittedOffset, ForbiddenNode, Owner, UnreadableNode
from ..deadline import Deadline
from ..exceptions import InvalidOptionError, NoPermissionError, UnavailableError, ZkgroupsException
from .reading import group_reader
from .requests.node import Node
from .requests.watches import FiredPaths, RecursiveWatch, WatchDispatcher
from .session.errors import translate
from .session.session import PIPELINE, RegistryContext

# The changes that a `Watch` reports, found by comparing nodes with earlier reads.


class Watched(StrEnum):
    """The part of a group to watch: its registered instances, the owners of its partitions, or its offsets."""

    MEMBERS = "members"
    OWNERS = "owners"
    OFFSETS = "offsets"


class ChangeKind(StrEnum):
    """The kind of a change.

    appeared   a node was created, or existed when the watch began
    changed    the data of a node was written
    vanished   a node was deleted
    rescanned  all nodes are read again; the differences follow
    """

    APPEARED = "appeared"
    CHANGED = "changed"
    VANISHED = "vanished"
    RESCANNED = "rescanned"


Value: TypeAlias = RegisteredInstance | Owner | CommittedOffset | UnreadableNode

Leaf: TypeAlias = Node | ForbiddenNode


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one node: a registration, an owner or an offset. Or a notice that all nodes are read again.

    - `kind`: the kind of the change.
    - `path`: the path of the node, without the chroot.
    - `now`: its new value; None if it was deleted.
    - `before`: its last reported value; None if it is new.
    - `reason`: for RESCANNED, why all nodes are read again, such as "the connection was lost". Otherwise empty.

    A value is a `RegisteredInstance`, an `Owner` or a `CommittedOffset`, or a `MalformedNode` or `ForbiddenNode`.
    """

    kind: ChangeKind
    path: str
    now: Value | None = None
    before: Value | None = None
    reason: str = ""


class SeenNodes:
    """The registrations, owners or offsets as they were last reported, and the changes still to report."""

    def __init__(self, group: str, what: Watched) -> None:
        self._group = group
        self._what = what
        self._nodes: dict[str, dict[str, Leaf]] = {}  # by directory and path
        self.forbidden: set[str] = set()
        """The paths of the reported nodes that must not be read."""
        self.changes: deque[Change] = deque()

    def directories(self) -> set[str]:
        """The directories with a reported node."""
        return set(self._nodes)

    def is_readable(self, path: str) -> bool:
        """Return whether the node was reported with its contents."""
        return isinstance(self._nodes.get(parent(path), {}).get(path), Node)

    def keep_only(self, directory: str, paths: Iterable[str]) -> None:
        """Report all other nodes of the directory as vanished."""
        for path in sorted(self._nodes.setdefault(directory, {}).keys() - set(paths)):
            self.update(path, None)

    def remove_directory(self, directory: str) -> None:
        """Report all nodes of the directory as vanished."""
        for path in list(self._nodes.get(directory, ())):
            self.update(path, None)
        self._nodes.pop(directory, None)

    def update(self, path: str, now: Leaf | None) -> None:
        """Compare a node with its last report, and report the difference."""
        nodes = self._nodes.setdefault(parent(path), {})
        before = nodes.pop(path, None)
        if now is not None:
            nodes[path] = now
        (self.forbidden.add if isinstance(now, ForbiddenNode) else self.forbidden.discard)(path)
        if before is None or now is None or _was_recreated(before, now):
            if before is not None:
                self._report(ChangeKind.VANISHED, path, before=before)
            if now is not None:
                self._report(ChangeKind.APPEARED, path, now=now)
        elif self._has_changed(before, now):
            self._report(ChangeKind.CHANGED, path, now=now, before=before)

    def _has_changed(self, before: Leaf, now: Leaf) -> bool:
        if isinstance(before, Node) and isinstance(now, Node):
            # Committing the same offset again is a change. Rewriting the same registration is not.
            return before.mzxid != now.mzxid and (self._what is Watched.OFFSETS or before.data != now.data)
        return type(before) is not type(now)

    def _report(self, kind: ChangeKind, path: str, *, now: Leaf | None = None, before: Leaf | None = None) -> None:
        self.changes.append(Change(kind, path, self._value(now), self._value(before)))

    def _value(self, leaf: Leaf | None) -> Value | None:
        if leaf is None:
            return None
        topic, name = leaf.path.rsplit("/", 2)[-2:]
        if isinstance(leaf, ForbiddenNode):
            return RegisteredInstance(name, 0, leaf) if self._what is Watched.MEMBERS else leaf
        match self._what:
            case Watched.MEMBERS:
                return group_reader.registered_instance(name, leaf)
            case Watched.OWNERS:
                return group_reader.owner(topic, name, leaf)
            case Watched.OFFSETS:
                return group_reader.offset_named(self._group, topic, name, leaf)


def _was_recreated(before: Leaf, now: Leaf) -> bool:
    return isinstance(before, Node) and isinstance(now, Node) and before.czxid != now.czxid


log = logging.getLogger("zkgroups.watch")

CHECK_CONNECTION_EVERY: Final = 1.0
"""In seconds, while disconnected: kazoo does not always report that it has given up."""

READ_FORBIDDEN_EVERY: Final = 5.0
"""In seconds. ZooKeeper does not report when a client gets the permission to read a node."""

CHECK_STATE_EVERY: Final = 0.05
"""In seconds, while waiting for a reply: how often to check whether the watch was closed or the connection lost."""


class Watch:
    """The changes of the members, owners or offsets of a group. Make it with `group.watch`, and close it after use.

    >>> with group.watch(Watched.OWNERS) as changes:  # doctest: +SKIP
    ...     for change in changes:
    ...         print(change.kind, change.path, change.now)

    Iterate over it, call `next`, or let `follow` call a function. The first change is `RESCANNED`, and each node that
    exists follows as `APPEARED`. After that, the watch waits for changes. Changes of one node that happen in quick
    succession may be reported as one.

    Applied in order, the changes give the state of the group at a past moment: `APPEARED` and `CHANGED` carry the new
    value in `now`. After a lost connection, all nodes are read again: `RESCANNED` announces that, changes nothing by
    itself, and is followed by the differences.

    A forbidden node is reported as a `ForbiddenNode`, and read again every few seconds. If the whole directory of the
    members, owners or offsets is forbidden, `next` raises `NoPermissionError`. You may call it again.
    """

    def __init__(self, paths: GroupPaths, context: RegistryContext, what: Watched) -> None:
        if what not in list(Watched):
            raise InvalidOptionError("what", what, "it must be one of " + ", ".join(Watched))
        self._group = paths.group
        self._session = context.session
        self._what = Watched(what)
        roots = {Watched.MEMBERS: paths.ids, Watched.OWNERS: paths.owners, Watched.OFFSETS: paths.offsets}
        self._root = roots[self._what]
        self._next_lock = threading.Lock()  # held in `next`; guards the fields up to _session_id
        self._seen = SeenNodes(self._group, self._what)
        self._watched: dict[str, int] = {}  # the directories with a watch, with the zxid that created each
        self._unread: OrderedDict[str, None] = OrderedDict()
        """The paths to read, each once: with one watch on all groups, a path is reported again before it was read."""
        self._pending: deque[_PendingRead] = deque()
        self._is_covered = False  # True if the watch on all groups reports changes, since everything was last read
        self._losses: int | None = None  # the number of lost connections when the whole tree was last read
        self._reason = "the watch has begun"
        self._session_id: int | None = None
        self._read_forbidden = Deadline(READ_FORBIDDEN_EVERY)
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._fired = FiredPaths()
        self._dispatcher = WatchDispatcher.of(self._session)
        self._dispatcher.add(self._root, self._fired)

    def __iter__(self) -> Iterator[Change]:
        while (change := self.next()) is not None:
            yield change

    def next(self, timeout: float | None = None) -> Change | None:
        """Wait for the next change. Return None after `timeout` seconds, or when the watch is closed."""
        deadline = Deadline(threading.TIMEOUT_MAX) if timeout is None else Deadline.after("timeout", timeout)
        if not self._next_lock.acquire(timeout=deadline.remaining):
            return None
        try:
            while not self._closed.is_set():
                if self._seen.changes:
                    return self._seen.changes.popleft()
                if not self._step(deadline):
                    return None
            return None
        finally:
            self._next_lock.release()

    def follow(self, callback: Callable[[Change], object]) -> Self:
        """Call `callback(change)` for every change, in a thread of this watch, until it is closed. Return at once.

        An error in the callback is logged, and the next change is reported. While the whole directory is forbidden,
        the thread logs that once, and tries again every few seconds.
        """
        if self._thread is not None:
            raise RuntimeError("this watch already has a callback: create another watch")
        self._thread = threading.Thread(
            target=self._follow, args=(callback,), name=f"zkgroups-watch-{self._group}", daemon=True
        )
        self._thread.start()
        return self

    def _follow(self, callback: Callable[[Change], object]) -> None:
        is_forbidden = False
        while not self._closed.is_set():
            try:
                for change in self:
                    is_forbidden = False
                    try:
                        callback(change)
                    except Exception:
                        log.exception("the callback for %s of group %s failed", self._what, self._group)
            except NoPermissionError as error:
                if not is_forbidden:
                    log.error("cannot watch %s of group %s: %s", self._what, self._group, error)
                is_forbidden = True
                self._closed.wait(READ_FORBIDDEN_EVERY)
            except ZkgroupsException as error:
                log.error("stopped watching %s of group %s: %s", self._what, self._group, error)
                return

    def close(self) -> None:
        """End all iterations, and the thread of `follow` after its current call."""
        self._closed.set()
        self._dispatcher.remove(self._root, self._fired)
        self._fired.wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _step(self, deadline: Deadline) -> bool:
        """Take one step towards the next change. Return False after the deadline."""
        if self._losses != self._dispatcher.losses:
            return self._read_everything(deadline)
        self._read_later(self._fired.take())
        if self._read_forbidden.passed:
            self._read_forbidden = Deadline(READ_FORBIDDEN_EVERY)
            self._read_later(sorted(self._seen.forbidden))
        self._send_reads()
        if self._pending:
            return self._wait_for_reply(self._pending[0], deadline)
        pause = Deadline(min(deadline.remaining, self._read_forbidden.remaining)) if self._seen.forbidden else deadline
        fired = self._wait(lambda: bool(self._fired) or self._losses != self._dispatcher.losses, pause)
        return fired or not deadline.passed

    def _wait(self, ready: Callable[[], bool], deadline: Deadline) -> bool:
        return self._fired.wait_for(lambda: self._closed.is_set() or ready(), deadline)

    def _read_everything(self, deadline: Deadline) -> bool:
        """Start to read the whole tree, as soon as there is a connection."""
        losses = self._dispatcher.losses
        if not self._session.wait_connected(Deadline(0.0)):  # raises an error if kazoo has given up
            pause = Deadline(min(CHECK_CONNECTION_EVERY, deadline.remaining))
            self._wait(lambda: bool(self._session.client.connected), pause)
            return not deadline.passed
        self._fired.take()
        self._watched.clear()
        self._pending.clear()
        self._unread.clear()
        self._losses = losses
        self._is_covered = RecursiveWatch.is_active(self._session)
        self._reason = self._reason or "the connection was lost"
        # This server may lag behind the last one. Its reply to `sync` comes before those to the reads sent after it.
        self._session.client.sync_async("/")
        self._read_later([self._root])
        return True

    def _read_later(self, paths: Iterable[str]) -> None:
        self._unread.update(dict.fromkeys(paths))

    def _send_reads(self) -> None:
        client, on_watch = self._session.client, None if self._is_covered else self._dispatcher.on_watch
        while self._unread and len(self._pending) < PIPELINE:
            path, _ = self._unread.popitem(last=False)
            if path == self._root or self._is_topic(path):
                reply = client.get_children_async(path, watch=on_watch, include_data=True)
                self._pending.append(_PendingRead(path, reply, self._on_directory))
            else:
                reply = client.get_async(path, watch=on_watch)
                self._pending.append(_PendingRead(path, reply, self._on_leaf))

    def _is_topic(self, path: str) -> bool:
        return self._what is not Watched.MEMBERS and parent(path) == self._root

    def _wait_for_reply(self, read: _PendingRead, deadline: Deadline) -> bool:
        while not read.reply.ready():
            if self._closed.is_set() or self._losses != self._dispatcher.losses:
                return True
            if deadline.passed:
                return False
            read.reply.wait(min(CHECK_STATE_EVERY, deadline.remaining))
        self._pending.popleft()
        try:
            read.handle(read.path, _result(read))
        except UnavailableError:
            losses, self._losses = self._losses, None
            # Either the connection was lost, which is reported soon, or the server is overloaded and gets a pause.
            pause = Deadline(min(CHECK_CONNECTION_EVERY, deadline.remaining))
            self._wait(lambda: self._dispatcher.losses != losses, pause)
        except ZkgroupsException:
            self._losses = None
            raise
        return True

    # Handle replies

    def _on_directory(self, path: str, found: tuple[list[str], Any] | ForbiddenNode | None) -> None:
        """Compare the names with the last reports. In a recreated directory, read all nodes again."""
        names, czxid = (found[0], found[1].czxid) if isinstance(found, tuple) else ([], None)
        known = self._watched.pop(path, None)
        if path == self._root:
            self._report_rescan(found, recreated=known not in (None, czxid))
        else:
            self._seen.update(path, found if isinstance(found, ForbiddenNode) else None)
        below = [join(path, name) for name in sorted(names, key=lambda name: (len(name), name))]
        self._seen.keep_only(path, below)
        if path == self._root and self._what is not Watched.MEMBERS:
            self._forget_topics(set(below))
            self._read_later(topic for topic in below if topic not in self._watched)
        elif known == czxid:
            # Nodes that could not be read have no watch, and may have been recreated.
            self._read_later(leaf for leaf in below if not self._seen.is_readable(leaf))
        else:
            self._read_later(below)
        if czxid is not None:
            self._watched[path] = czxid
        elif path == self._root and not self._is_covered:
            reply = self._session.client.exists_async(path, watch=self._dispatcher.on_watch)
            self._pending.append(_PendingRead(path, reply, self._on_missing_root))

    def _report_rescan(self, found: object, *, recreated: bool) -> None:
        """After the root was read, report why, unless a watch on it has fired as usual."""
        if isinstance(found, ForbiddenNode):
            raise NoPermissionError(found.path)
        session_id = self._session.id
        if self._reason and self._session_id not in (None, session_id):
            self._reason = "the session expired"
        elif recreated:
            self._reason = "the directory was deleted" if found is None else "the directory was deleted and recreated"
        if self._reason:
            self._seen.changes.append(Change(ChangeKind.RESCANNED, self._root, reason=self._reason))
        self._session_id, self._reason = session_id, ""

    def _forget_topics(self, existing: set[str]) -> None:
        for topic in sorted((self._seen.directories() | self._watched.keys()) - existing - {self._root}):
            self._watched.pop(topic, None)
            self._seen.remove_directory(topic)

    def _on_missing_root(self, path: str, found: object) -> None:
        """Read the root if it was created before this request set a watch on its creation."""
        if found is not None:
            self._read_later([path])

    def _on_leaf(self, path: str, found: tuple[bytes, Any] | ForbiddenNode | None) -> None:
        self._seen.update(path, Node.of(path, *found) if isinstance(found, tuple) else found)


@dataclass(frozen=True, slots=True)
class _PendingRead:
    """A request in flight, and the method that handles its reply."""

    path: str
    reply: Any
    handle: Callable[[str, Any], None]


def _result(read: _PendingRead) -> Any:
    try:
        return read.reply.get_nowait()
    except NoNodeError:
        return None
    except NoAuthError:
        return ForbiddenNode(read.path)
    except KazooException as error:
        raise translate(error, read.path) from error


# Hear at once which groups have changed: members, owners, migrations or offsets, of all groups, by one watch.


_BELOW: Final = CONSUMERS + "/"


@dataclass(frozen=True, slots=True)
class ChangedGroups:
    """The groups that have changed. With `everything`, changes may have been missed: every group may have changed."""

    groups: frozenset[str] = field(default_factory=frozenset)
    everything: bool = False

    def __bool__(self) -> bool:
        return bool(self.groups) or self.everything


class GroupChanges:
    """The groups that change, from now on. Make it with `registry.group_changes()`.

    >>> with registry.group_changes() as changes:  # doctest: +SKIP
    ...     while changes.begin():
    ...         for group in changes.wait(timeout=60).groups:
    ...             print(registry.group(group).describe().state)

    Servers support it since ZooKeeper 3.6. `ignored` parts of groups are not reported: commits change `offsets`
    thousands of times a second in a large cluster.
    """

    def __init__(self, context: RegistryContext, ignored: Collection[Part] = (Part.OFFSETS,)) -> None:
        self._context = context
        self._ignored = frozenset(ignored)
        self._watch = RecursiveWatch.of(context.session)
        self._changed = threading.Condition()
        self._groups: set[str] = set()  # guarded by _changed, as is _gap
        self._gap = False
        self._closed = False
        self._watch.add(self)

    def begin(self) -> bool:
        """Begin to watch, also after a lost connection. Return False if the server does not support it.

        The first result of `wait` then has `everything`.
        """
        return self._watch.begin(Deadline(self._context.timeout))

    @property
    def is_live(self) -> bool:
        """True if changes are reported now: the server supports it, and there is a connection."""
        return self._watch.active

    def wait(self, timeout: float, *, pause: float = 0.0) -> ChangedGroups:
        """Wait for a change, and then for `pause` seconds more, because changes seldom come alone. Return them all.

        After `timeout` seconds, or after `wake`, the result may be empty.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._groups or self._gap or self._closed, timeout)
            if pause and self._groups and not self._closed:
                self._changed.wait_for(lambda: self._closed, pause)
            found = ChangedGroups(frozenset(self._groups), self._gap)
            self._groups.clear()
            self._gap = False
        return found

    def close(self) -> None:
        """End all waiting. Later changes are not reported."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # On kazoo's threads

    def on_change(self, path: str) -> None:
        """Called with the path of a node that has changed."""
        group, _, below = path.removeprefix(_BELOW).partition("/")
        if path == CONSUMERS or below.partition("/")[0] in self._ignored:
            return
        with self._changed:
            self._groups.add(group)
            self._changed.notify_all()

    def on_gap(self) -> None:
        """Called when changes may have been missed."""
        with self._changed:
            self._gap = True
            self._changed.notify_all()
