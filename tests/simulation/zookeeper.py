"""A ZooKeeper server in memory: bytes of requests in, bytes of answers and watch events out.

It knows no clock, no socket and no thread: `world.py` has these. `test_conformance.py` compares it with real servers
of each release. What zkgroups and kazoo do not use is missing: containers, TTL nodes, quotas, and reconfiguration.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from struct import Struct
from typing import Any, Final, NamedTuple

_INT, _LONG, _BOOL = Struct("!i"), Struct("!q"), Struct("!?")
_ANSWER_HEAD: Final = Struct("!iqi")
_MULTI_HEAD: Final = Struct("!i?i")
_STAT: Final = Struct("!qqqqiiiqiiq")

NO_NODE, NO_AUTH, BAD_VERSION, NO_CHILDREN_FOR_EPHEMERALS = -101, -102, -103, -108
NODE_EXISTS, NOT_EMPTY, INVALID_ACL, AUTH_FAILED = -110, -111, -114, -115
INCONSISTENT, UNIMPLEMENTED, BAD_ARGUMENTS = -2, -6, -8

CREATE, DELETE, EXISTS, GET, SET, GET_ACL, SET_ACL, CHILDREN, SYNC = range(1, 10)
PING, CHILDREN2, CHECK, MULTI, CREATE2, MULTI_READ = 11, 12, 13, 14, 15, 22
AUTH, SET_WATCHES, SET_WATCHES2, ADD_WATCH, CLOSE = 100, 101, 105, 106, -11
WRITES: Final = frozenset({CREATE, CREATE2, DELETE, SET, SET_ACL, MULTI, CLOSE, CHECK})

CREATED, DELETED, CHANGED, CHILD = 1, 2, 3, 4
READ, WRITE, CREATE_CHILD, DELETE_CHILD, ADMIN = 1, 2, 4, 8, 16
WATCH_XID, PING_XID, AUTH_XID = -1, -2, -4
Acl = tuple[tuple[int, str, str], ...]
_OPEN: Final[Acl] = ((31, "world", "anyone"),)


class Failure(Exception):
    """A request fails with this error number."""

    def __init__(self, error: int) -> None:
        self.error = error


class Unknown(Exception):
    """The server does not know a request. It closes the connection, as real servers do."""


class Reader:
    """Takes values out of a request, one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, struct: Struct) -> Any:
        found = struct.unpack_from(self._data, self._at)
        self._at += struct.size
        return found if len(found) > 1 else found[0]

    def buffer(self) -> bytes | None:
        length = self.take(_INT)
        if length < 0:
            return None
        self._at += length
        return self._data[self._at - length : self._at]

    def text(self) -> str:
        return (self.buffer() or b"").decode()

    def texts(self) -> list[str]:
        return [self.text() for _ in range(self.take(_INT))]

    def acl(self) -> Acl:
        return tuple((self.take(_INT), self.text(), self.text()) for _ in range(self.take(_INT)))


def _buffer(data: bytes | None) -> bytes:
    return _INT.pack(-1) if data is None else _INT.pack(len(data)) + data


def _text(text: str) -> bytes:
    return _buffer(text.encode())


def _texts(texts: list[str]) -> bytes:
    return _INT.pack(len(texts)) + b"".join(map(_text, texts))


def frame(body: bytes) -> bytes:
    """Return the bytes of one message."""
    return _INT.pack(len(body)) + body


@dataclass(slots=True)
class Node:
    data: bytes | None
    created_zxid: int
    created_ms: int
    owner: int
    acl: Acl
    zxid: int = 0
    modified_ms: int = 0
    version: int = 0
    children_created: int = 0
    acl_version: int = 0
    children_zxid: int = 0
    children: set[str] = field(default_factory=set)

    def stat(self) -> bytes:
        return _STAT.pack(
            self.created_zxid,
            self.zxid,
            self.created_ms,
            self.modified_ms,
            self.version,
            2 * self.children_created - len(self.children),  # as many as were created and deleted
            self.acl_version,
            self.owner,
            len(self.data or b""),
            len(self.children),
            self.children_zxid,
        )

    def copy(self) -> Node:
        return Node(*(getattr(self, name) for name in self.__slots__[:-1]), children=set(self.children))


@dataclass(eq=False)
class Session:
    id: int
    password: bytes
    timeout: float
    heard: float
    connection: Connection | None = None


class Connection:
    """One client's connection. `send` receives what the server sends; `hang_up` is called when the server closes it."""

    numbers = itertools.count(1)

    def __init__(self, send: Callable[[bytes], None], hang_up: Callable[[], None]) -> None:
        self.number = next(self.numbers)
        self.send, self.hang_up = send, hang_up
        self.session: Session | None = None
        self.identities: list[tuple[str, str]] = [("world", "anyone"), ("ip", "10.0.0.2")]
        self.old: tuple[int, dict[str, Node]] | None = None
        """The state of a server that lags behind: it answers reads until it gets a write or a sync."""

    def may(self, acl: Acl, permission: int) -> bool:
        """Whether the client has a permission."""
        return any(allowed & permission and (scheme, who) in self.identities for allowed, scheme, who in acl)


class Event(NamedTuple):
    """What happened to a node, who may read it, the session that it belongs to, and its data."""

    kind: int
    path: str
    acl: Acl
    owner: int = 0
    data: bytes | None = None


class Applied(NamedTuple):
    """A change in the order of the server, and the session that made it: 0 for the end of a session."""

    zxid: int
    by: int
    event: Event


@dataclass
class Release:
    """What a release of ZooKeeper can do."""

    version: tuple[int, int, int] = (3, 9, 5)

    @property
    def has_create2(self) -> bool:
        return self.version >= (3, 5, 0)

    @property
    def has_multi_read(self) -> bool:
        return self.version >= (3, 6, 0)

    @property
    def checks_parent_first(self) -> bool:
        return self.version >= (3, 6, 0)

    @property
    def needs_permission_to_look(self) -> bool:
        return self.version >= (3, 8, 4)

    @property
    def needs_permission_for_events(self) -> bool:
        return self.version >= (3, 8, 4)


class Server:
    """The state of one server. Call `expire` and `handle`, and read `sessions`."""

    def __init__(self, release: Release | None = None, *, random: Random | None = None, tick: float = 0.5) -> None:
        self.release = release or Release()
        self.random = random or Random(0)
        self.tick = tick
        self.zxid = 0
        self.nodes: dict[str, Node] = {}
        self.sessions: dict[int, Session] = {}
        self._session_ids = itertools.count(0x1000000000001)
        self._data_watches: dict[str, list[Connection]] = {}
        self._child_watches: dict[str, list[Connection]] = {}
        self._tree_watches: dict[str, list[Connection]] = {}
        self.on_session: Callable[[Session], None] = lambda _session: None
        self.on_change: Callable[[Applied], None] = lambda _applied: None
        for path in ("/", "/zookeeper"):
            self.nodes[path] = Node(b"", 0, 0, 0, _OPEN)
        self.nodes["/"].children.add("zookeeper")

    # Sessions

    def connect(self, connection: Connection, request: bytes, now: float) -> None:
        """Answer the first request of a connection."""
        reader = Reader(request)
        reader.take(_INT)
        seen, asked_ms, session_id = reader.take(_LONG), reader.take(_INT), reader.take(_LONG)
        password = reader.buffer()
        # A client that knows a newer state than this server must look for another.
        if seen > (self.zxid if connection.old is None else connection.old[0]):
            connection.hang_up()
            return
        if not session_id:
            timeout = max(asked_ms / 1000, 2 * self.tick)
            session = Session(next(self._session_ids), self.random.randbytes(16), timeout, now)
            self.zxid += 1
            self.sessions[session.id] = session
            self.on_session(session)
        elif (found := self.sessions.get(session_id)) is None or found.password != password:
            connection.send(frame(struct_connect(0, 0, bytes(16))))
            connection.hang_up()
            return
        else:
            session = found
            if session.connection is not None:
                self.disconnect(session.connection)
        session.connection, connection.session, session.heard = connection, session, now
        connection.send(frame(struct_connect(int(session.timeout * 1000), session.id, session.password)))

    def disconnect(self, connection: Connection) -> None:
        """Forget a connection. Its session lives on."""
        for watches in (self._data_watches, self._child_watches, self._tree_watches):
            for path in [path for path, watchers in watches.items() if connection in watchers]:
                watches[path] = [each for each in watches[path] if each is not connection]
        if connection.session is not None and connection.session.connection is connection:
            connection.session.connection = None
        connection.hang_up()

    def expire(self, session: Session) -> None:
        """End a session, and hang up."""
        self._end(session)
        if session.connection is not None:
            self.disconnect(session.connection)

    def _end(self, session: Session) -> None:
        if self.sessions.pop(session.id, None) is None:
            return
        self.zxid += 1
        for path in [path for path, node in self.nodes.items() if node.owner == session.id]:
            self._fire(self._remove(path), 0)

    def copy(self) -> tuple[int, dict[str, Node]]:
        """Return the last transaction and the nodes as they are now."""
        return self.zxid, {path: node.copy() for path, node in self.nodes.items()}

    def back_up(self) -> tuple[int, dict[str, Node]]:
        """Return the number of the last transaction, and a copy of all persistent nodes."""
        return self.zxid, {path: node.copy() for path, node in self.nodes.items() if not node.owner}

    def restore(self, backup: tuple[int, dict[str, Node]]) -> None:
        """Forget everything since a backup. No client is connected."""
        self.zxid, nodes = backup
        self.sessions.clear()
        self.nodes = {path: node.copy() for path, node in nodes.items()}
        for path, node in self.nodes.items():
            node.children = {name for name in node.children if f"{path.rstrip('/')}/{name}" in self.nodes}

    # Requests

    def handle(self, connection: Connection, request: bytes, now: float, wall: float) -> None:
        """Answer one request."""
        session = connection.session
        if session is None:
            if request == b"srvr":
                version = ".".join(map(str, self.release.version))
                connection.send(f"Zookeeper version: {version}-x, built on x\nZxid: {self.zxid:#x}\n".encode())
                connection.hang_up()
            else:
                self.connect(connection, request, now)
            return
        reader = Reader(request)
        xid, kind = reader.take(_INT), reader.take(_INT)
        session.heard = now
        if session.id not in self.sessions:
            self.disconnect(connection)
            return
        if kind in WRITES and kind != CLOSE:
            self.zxid += 1
        if kind in WRITES or kind == SYNC:
            connection.old = None
        newest = self.zxid, self.nodes
        self.zxid, self.nodes = connection.old or newest
        try:
            self._send_answer(connection, xid, kind, reader, int(wall * 1000))
        finally:
            if connection.old is not None:
                self.zxid, self.nodes = newest

    def _send_answer(self, connection: Connection, xid: int, kind: int, reader: Reader, now_ms: int) -> None:
        try:
            body, error = self._answer(connection, kind, reader, now_ms), 0
        except Failure as failure:
            body, error = b"", failure.error
        except Unknown:
            if self.release.version < (3, 5, 0):
                self.disconnect(connection)
                return
            body, error = b"", UNIMPLEMENTED
        head = _ANSWER_HEAD.pack(xid, self.zxid, error)
        connection.send(frame(head + body))
        if kind == CLOSE or error in (UNIMPLEMENTED, AUTH_FAILED):
            self.disconnect(connection)

    def _answer(self, connection: Connection, kind: int, reader: Reader, now_ms: int) -> bytes:
        if kind in (PING, SET_WATCHES):
            return b""
        if kind == CLOSE:
            assert connection.session is not None
            self._end(connection.session)
            return b""
        if kind == AUTH:
            self._log_in(connection, reader)
            return b""
        if kind == MULTI:
            return self._multi(connection, reader, now_ms)
        if kind == MULTI_READ and self.release.has_multi_read:
            return self._multi_read(connection, reader)
        if kind in (ADD_WATCH, SET_WATCHES2) and self.release.has_multi_read:
            return self._add_tree_watch(connection, kind, reader)
        if kind in (CREATE, CREATE2, DELETE, SET, SET_ACL):
            if kind == CREATE2 and not self.release.has_create2:
                raise Unknown
            answer, change = self._write(connection, kind, reader, now_ms)
            assert connection.session is not None
            self._fire(change.events, connection.session.id)
            return answer
        if kind == SYNC:
            return _text(reader.text())
        return self._read(connection, kind, reader)

    def _log_in(self, connection: Connection, reader: Reader) -> None:
        reader.take(_INT)
        scheme, secret = reader.text(), reader.buffer() or b""
        if scheme != "digest":
            raise Failure(AUTH_FAILED)
        user = secret.decode().partition(":")[0]
        digest = base64.b64encode(hashlib.sha1(secret).digest()).decode()  # noqa: S324 -- as ZooKeeper does
        connection.identities.append(("digest", f"{user}:{digest}"))

    # Reads

    def _node(self, path: str) -> Node:
        if (node := self.nodes.get(path)) is None:
            raise Failure(NO_NODE)
        return node

    def _check(self, connection: Connection, node: Node, permission: int) -> None:
        if not connection.may(node.acl, permission):
            raise Failure(NO_AUTH)

    def _read(self, connection: Connection, kind: int, reader: Reader) -> bytes:
        path = reader.text()
        if kind == EXISTS:
            if reader.take(_BOOL):
                self._add_watch(self._data_watches, path, connection)
            node = self._node(path)
            if self.release.needs_permission_to_look:
                self._check(connection, node, READ)
            return node.stat()
        node = self._node(path)
        if kind == GET_ACL:
            self._check(connection, node, READ | ADMIN)
            acl = b"".join(_INT.pack(allowed) + _text(scheme) + _text(who) for allowed, scheme, who in node.acl)
            return _INT.pack(len(node.acl)) + acl + node.stat()
        if kind not in (GET, CHILDREN, CHILDREN2):
            raise Unknown
        self._check(connection, node, READ)
        if reader.take(_BOOL):
            self._add_watch(self._data_watches if kind == GET else self._child_watches, path, connection)
        if kind == GET:
            return _buffer(node.data) + node.stat()
        return _texts(self._names(node)) + (node.stat() if kind == CHILDREN2 else b"")

    def _names(self, node: Node) -> list[str]:
        """The children. Their order means nothing, so it is another one each time."""
        names = sorted(node.children)
        self.random.shuffle(names)
        return names

    def _multi_read(self, connection: Connection, reader: Reader) -> bytes:
        parts = []
        for kind in _operations(reader):
            path = reader.text()
            reader.take(_BOOL)
            try:
                node = self._node(path)
                self._check(connection, node, READ)
            except Failure as failure:
                parts.append(_MULTI_HEAD.pack(-1, False, failure.error) + _INT.pack(failure.error))
                continue
            body = _buffer(node.data) + node.stat() if kind == GET else _texts(self._names(node))
            parts.append(_MULTI_HEAD.pack(kind, False, 0) + body)
        return b"".join(parts) + _MULTI_HEAD.pack(-1, True, -1)

    # Writes

    def _write(self, connection: Connection, kind: int, reader: Reader, now_ms: int) -> tuple[bytes, _Change]:
        """Carry out one write. Return its answer, and what it changed."""
        path = reader.text()
        if kind in (CREATE, CREATE2):
            return self._create(connection, kind, path, reader, now_ms)
        if kind == DELETE:
            return b"", self._delete(connection, path, reader.take(_INT))
        if kind == CHECK:
            version = reader.take(_INT)
            node = self._node(path)
            self._check(connection, node, READ)
            _check_version(node.version, version)
            return b"", _Change(lambda: None, [])
        if kind == SET_ACL:
            acl, version = self._given_acl(connection, reader.acl()), reader.take(_INT)
            node = self._node(path)
            self._check(connection, node, ADMIN)
            _check_version(node.acl_version, version)
            before = node.copy()
            node.acl, node.acl_version = acl, node.acl_version + 1
            return node.stat(), _Change(self._putting_back({path: before}), [])
        data, version = reader.buffer(), reader.take(_INT)
        node = self._node(path)
        self._check(connection, node, WRITE)
        _check_version(node.version, version)
        before = node.copy()
        node.data, node.version, node.zxid, node.modified_ms = data, node.version + 1, self.zxid, now_ms
        return node.stat(), _Change(
            self._putting_back({path: before}), [Event(CHANGED, path, node.acl, node.owner, data)]
        )

    def _given_acl(self, connection: Connection, acl: Acl) -> Acl:
        if not acl:
            raise Failure(INVALID_ACL)
        found = []
        for allowed, scheme, who in acl:
            if scheme == "auth":
                mine = [each for each in connection.identities if each[0] == "digest"]
                if not mine:
                    raise Failure(INVALID_ACL)
                found += [(allowed, *each) for each in mine]
            elif (scheme, who) == ("world", "anyone") or (scheme == "digest" and who.count(":") == 1) or scheme == "ip":
                found.append((allowed, scheme, who))
            else:
                raise Failure(INVALID_ACL)
        return tuple(dict.fromkeys(found))

    def _create(
        self, connection: Connection, kind: int, path: str, reader: Reader, now_ms: int
    ) -> tuple[bytes, _Change]:
        data, acl, flags = reader.buffer(), reader.acl(), reader.take(_INT)
        assert connection.session is not None
        acl = self._given_acl(connection, acl)
        above, name = split(path)
        parent = self._node(above)
        self._check(connection, parent, CREATE_CHILD)
        if flags & 2:
            path += f"{parent.children_created:010d}"
            name = split(path)[1]
        if path in self.nodes:
            raise Failure(NODE_EXISTS)
        if parent.owner:
            raise Failure(NO_CHILDREN_FOR_EPHEMERALS)
        before = parent.copy()
        owner = connection.session.id if flags & 1 else 0
        node = Node(data, self.zxid, now_ms, owner, acl, zxid=self.zxid, modified_ms=now_ms, children_zxid=self.zxid)
        self.nodes[path] = node
        parent.children.add(name)
        parent.children_created, parent.children_zxid = parent.children_created + 1, self.zxid
        answer = _text(path) + (node.stat() if kind == CREATE2 else b"")
        return answer, _Change(
            self._putting_back({path: None, above: before}), [Event(CREATED, path, acl, owner, data)]
        )

    def _delete(self, connection: Connection, path: str, version: int) -> _Change:
        if path == "/":
            raise Failure(BAD_ARGUMENTS)
        above, _ = split(path)
        if above not in self.nodes:
            raise Failure(NO_NODE)
        if self.release.checks_parent_first:
            self._check(connection, self.nodes[above], DELETE_CHILD)
        node = self._node(path)
        self._check(connection, self.nodes[above], DELETE_CHILD)
        _check_version(node.version, version)
        if node.children:
            raise Failure(NOT_EMPTY)
        before = {path: node.copy(), above: self.nodes[above].copy()}
        return _Change(self._putting_back(before), self._remove(path))

    def _remove(self, path: str) -> list[Event]:
        node = self.nodes.pop(path)
        above, name = split(path)
        parent = self.nodes[above]
        parent.children.discard(name)
        parent.children_zxid = self.zxid
        return [Event(DELETED, path, node.acl, node.owner, node.data)]

    def _putting_back(self, before: dict[str, Node | None]) -> Callable[[], None]:
        def put_back() -> None:
            for path, node in before.items():
                if node is None:
                    self.nodes.pop(path, None)
                else:
                    self.nodes[path] = node

        return put_back

    def _multi(self, connection: Connection, reader: Reader, now_ms: int) -> bytes:
        parts: list[bytes] = []
        changes: list[_Change] = []
        error = 0
        for kind in _operations(reader):
            if error:
                _skip(kind, reader)
                parts.append(_multi_error(INCONSISTENT))
                continue
            try:
                answer, change = self._write(connection, kind, _one_operation(kind, reader), now_ms)
            except Failure as failure:
                error = failure.error
                parts = [_multi_error(0)] * len(parts) + [_multi_error(error)]
            else:
                changes.append(change)
                parts.append(_MULTI_HEAD.pack(kind, False, 0) + answer)
        if error:
            for change in reversed(changes):
                change.undo()
        else:
            assert connection.session is not None
            for change in changes:
                self._fire(change.events, connection.session.id)
        return b"".join(parts) + _MULTI_HEAD.pack(-1, True, -1)

    # Watches

    @staticmethod
    def _add_watch(watches: dict[str, list[Connection]], path: str, connection: Connection) -> None:
        if connection not in (watchers := watches.setdefault(path, [])):
            watchers.append(connection)

    def _add_tree_watch(self, connection: Connection, kind: int, reader: Reader) -> bytes:
        if kind == ADD_WATCH:
            paths = [reader.text()]
        else:
            reader.take(_LONG)
            paths = [reader.texts() for _ in range(5)][-1]
        for path in paths:
            self._add_watch(self._tree_watches, path, connection)
        return b"" if kind == SET_WATCHES2 else _INT.pack(0)

    def _fire(self, events: list[Event], by: int) -> None:
        """Send watch events. Each connection receives one event for a node, however it watches it."""
        for event in events:
            self.on_change(Applied(self.zxid, by, event))
            kind, path, acl, _owner, _data = event
            told = self._data_watches.pop(path, [])
            if kind == DELETED:
                told += [each for each in self._child_watches.pop(path, []) if each not in told]
            told += [each for each in self._tree_watchers(path) if each not in told]
            self._send_event(told, kind, path, acl)
            if kind in (CREATED, DELETED):
                above, _ = split(path)
                its_acl = self.nodes[above].acl if above in self.nodes else acl  # the same multi has deleted it, too
                self._send_event(self._child_watches.pop(above, []), CHILD, above, its_acl)

    def _tree_watchers(self, path: str) -> Iterator[Connection]:
        while self._tree_watches:
            yield from self._tree_watches.get(path, ())
            if path == "/":
                return
            path, _ = split(path)

    def _send_event(self, watchers: list[Connection], kind: int, path: str, acl: Acl) -> None:
        body = _ANSWER_HEAD.pack(WATCH_XID, -1, 0) + _INT.pack(kind) + _INT.pack(3) + _text(path)
        for connection in watchers:
            if not self.release.needs_permission_for_events or connection.may(acl, READ):
                connection.send(frame(body))


class _Change(NamedTuple):
    undo: Callable[[], None]
    events: list[Event]


def _one_operation(kind: int, reader: Reader) -> Reader:
    """Take one operation of a multi whole, before it is carried out: a failed one leaves nothing unread."""
    start = reader._at
    _skip(kind, reader)
    return Reader(reader._data[start : reader._at])


def _skip(kind: int, reader: Reader) -> None:
    reader.text()
    if kind in (CREATE, CREATE2):
        reader.buffer(), reader.acl(), reader.take(_INT)
    elif kind == SET:
        reader.buffer(), reader.take(_INT)
    elif kind in (DELETE, CHECK):
        reader.take(_INT)


def _operations(reader: Reader) -> Iterator[int]:
    while True:
        kind, done, _ = reader.take(_MULTI_HEAD)
        if done:
            return
        yield kind


def _multi_error(error: int) -> bytes:
    return _MULTI_HEAD.pack(-1, False, error) + _INT.pack(error)


def _check_version(found: int, expected: int) -> None:
    if expected not in (-1, found):
        raise Failure(BAD_VERSION)


def split(path: str) -> tuple[str, str]:
    """Return the parent of a path, and its last name."""
    above, _, name = path.rpartition("/")
    return above or "/", name


def struct_connect(timeout_ms: int, session_id: int, password: bytes) -> bytes:
    """Return the answer to a connection request."""
    return _INT.pack(0) + _INT.pack(timeout_ms) + _LONG.pack(session_id) + _buffer(password) + b"\0"
