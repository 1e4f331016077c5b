"""What zkgroups assumes about kazoo's private parts, one test for each assumption. No server.

If a new version of kazoo breaks one, the test names it, and `kazoo_compat` must be adapted before the upper bound of
the version in `setup.cfg` is raised.
"""

from __future__ import annotations

import ast
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionDropped,
    NoNodeError,
    SessionExpiredError,
)
from kazoo.protocol.connection import AUTH_XID, PING_XID, WATCH_XID
from kazoo.protocol.serialization import Auth, Connect, GetChildren, GetData, ReplyHeader, int_struct
from kazoo.protocol.states import KeeperState
from kazoo.retry import ForceRetryError

from ..test_architecture import KAZOO_COMPAT, KAZOO_PRIVATE_NAMES, ROOT, _kazoo_private_name

Check = Callable[[Any], None]
ASSUMPTIONS: dict[str, Check] = {}
CHECKED_NAMES: set[str] = set()


def assumption(text: str, *names: str) -> Callable[[Check], Check]:
    """Register a check of an assumption about these private names."""

    def register(check: Check) -> Check:
        assert text not in ASSUMPTIONS
        ASSUMPTIONS[text] = check
        CHECKED_NAMES.update(names)
        return check

    return register


class Answer:
    """An asynchronous result, as kazoo uses it."""

    def __init__(self) -> None:
        self.results: list[Any] = []
        self.set = self.set_exception = self.results.append


class Recorder:
    """Replaces a method, and records its arguments."""

    def __init__(self, result: Any = None) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._result = result

    def __call__(self, *arguments: Any) -> Any:
        self.calls.append(arguments)
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


def new_client(**options: Any) -> Any:
    return KazooClient("127.0.0.1:1", **options)


# The session


@assumption("a client stores the session's id and password", "_session_id", "_session_passwd")
def _(client: Any) -> None:
    assert not client._session_id
    assert client._session_passwd == bytes(16)
    resuming = new_client(client_id=(7, b"p" * 16))
    assert (resuming._session_id, resuming._session_passwd) == (7, b"p" * 16)


@assumption("a client stores the requested session timeout in milliseconds", "_session_timeout")
def _(_client: Any) -> None:
    assert new_client(timeout=12.5)._session_timeout == 12_500


@assumption("_reset_session forgets the session", "_reset_session")
def _(client: Any) -> None:
    client._session_id, client._session_passwd = 7, b"p" * 16
    client._reset_session()
    assert (client._session_id, client._session_passwd) == (None, bytes(16))


@assumption("a client that is not started is stopped and not live", "_stopped", "_live")
def _(client: Any) -> None:
    assert client._stopped.is_set()
    assert not client._live.is_set()
    client._live.set()
    assert client.connected


@assumption("the public state of a client is its _state", "_state")
def _(client: Any) -> None:
    for state in (KeeperState.CONNECTED_RO, KeeperState.AUTH_FAILED, KeeperState.CLOSED):
        client._state = state
        assert client.client_state == state


# Connecting


def _connect(client: Any, granted: Connect) -> tuple[Any, Recorder, dict[str, Any]]:
    """Run kazoo's `_connect` with a socket and an answer of our own."""
    connection, options = client._connection, dict[str, Any]()
    client.handler.create_connection = lambda **given: (
        options.update(given) or SimpleNamespace(setblocking=lambda _flag: None)
    )
    connection._invoke = invoke = Recorder((granted, None))
    result = connection._connect("zk1", "10.0.0.1", 2181)
    return result, invoke, options


GRANTED = Connect(0, 0, 9_000, 7, b"p" * 16, False)


@assumption("_connect opens a socket by the handler's create_connection", "_connect", "_socket", "_connection")
def _(client: Any) -> None:
    _, _, options = _connect(client, GRANTED)
    assert (options["address"], options["hostname"]) == (("10.0.0.1", 2181), "zk1")
    assert options.keys() >= {"timeout", "use_ssl", "ca", "certfile", "keyfile", "keyfile_password"}
    assert client._connection._socket is not None


@assumption("_connect sends the stored session by _invoke, and stores the granted one", "_invoke")
def _(client: Any) -> None:
    client._session_id, client._session_passwd = 5, b"o" * 16
    timeouts, invoke, _ = _connect(client, GRANTED)
    [(_timeout, request)] = invoke.calls
    assert isinstance(request, Connect)
    assert (request.session_id, request.passwd, request.time_out) == (5, b"o" * 16, client._session_timeout)
    assert (client._session_id, client._session_passwd) == (7, b"p" * 16)
    assert len(timeouts) == 2


@assumption("_connect takes a timeout of 0 for an expired session")
def _(client: Any) -> None:
    with pytest.raises(SessionExpiredError):
        _connect(client, Connect(0, 0, 0, 0, bytes(16), False))


@assumption(
    "_connect logs in by _authenticate_with_sasl(host, timeout) if there are SASL options", "_authenticate_with_sasl"
)
def _(_client: Any) -> None:
    client = new_client(sasl_options={"mechanism": "DIGEST-MD5", "username": "u", "password": "p"})
    assert client._connection.sasl_options["username"] == "u"
    client._connection._authenticate_with_sasl = log_in = Recorder()
    _connect(client, GRANTED)
    [(host, timeout)] = log_in.calls
    assert host == "zk1"
    assert timeout > 0


@assumption("a connect loop tries the addresses of _expand_client_hosts in order", "_expand_client_hosts")
def _(client: Any) -> None:
    connection = client._connection
    addresses = [("zk1", "10.0.0.1", 2181), ("zk2", "10.0.0.2", 2182)]
    connection._expand_client_hosts = lambda: addresses
    connection._connect = attempts = Recorder(ConnectionDropped("no server"))
    client._stopped.clear()
    with pytest.raises(ForceRetryError):
        connection._connect_loop(SimpleNamespace(reset=lambda: None))
    assert attempts.calls == addresses


@assumption("addresses are tuples of a host name, an address and a port")
def _(client: Any) -> None:
    assert client._connection._expand_client_hosts() == [("127.0.0.1", "127.0.0.1", 1)]


@assumption("a refused login ends the connection attempts")
def _(client: Any) -> None:
    connection = client._connection
    connection._connect = Recorder(AuthFailedError())
    client._stopped.clear()
    connection._connect_attempt("zk1", "10.0.0.1", 2181, SimpleNamespace(reset=lambda: None))
    assert client._state == KeeperState.AUTH_FAILED


@assumption("the last step of kazoo's thread is to report CLOSED, after connection_stopped is set", "_session_callback")
def _(client: Any) -> None:
    connection, reports = client._connection, list[tuple[Any, bool]]()
    client._session_callback = lambda state: reports.append((state, connection.connection_stopped.is_set()))
    connection.zk_loop()
    assert reports == [(KeeperState.CLOSED, True)]


# Sending


@assumption("_call refuses requests by the state of the client", "_call")
def _(client: Any) -> None:
    refusals = {
        KeeperState.AUTH_FAILED: AuthFailedError,
        KeeperState.CLOSED: ConnectionClosedError,
        KeeperState.EXPIRED_SESSION: SessionExpiredError,
    }
    for state, error in refusals.items():
        client._state, answer = state, Answer()
        client._call(GetData("/x", None), answer)
        assert [type(each) for each in answer.results] == [error]
    assert not client._queue


@assumption(
    "_call puts a request and its answer into the queue, and writes one byte", "_queue", "_write_sock", "_read_sock"
)
def _(client: Any) -> None:
    connection, request, answer = client._connection, GetData("/x", None), Answer()
    assert connection._read_sock is connection._write_sock is None
    client._state = KeeperState.CONNECTED
    connection._read_sock, connection._write_sock = socket.socketpair()
    with connection._read_sock, connection._write_sock:
        client._call(request, answer)
        assert list(client._queue) == [(request, answer)]
        assert connection._read_sock.recv(9) == b"\0"


@assumption("_send_request sends the oldest request by _submit, and makes it pending", "_send_request", "_pending")
def _(client: Any) -> None:
    connection, request, answer = client._connection, GetData("/x", None), Answer()
    connection._xid, connection._submit = 4, Recorder()
    connection._read_sock, write_sock = socket.socketpair()
    with connection._read_sock, write_sock:
        write_sock.send(b"\0\0")
        client._queue.extend([(request, answer), (request, answer)])
        connection._send_request(3.0, 2.0)
        assert connection._submit.calls == [(request, 2.0, 5)]
        assert list(client._pending) == [(request, answer, 5)]
        assert len(client._queue) == 1
        assert connection._read_sock.recv(9) == b"\0", "it reads one byte for each request"


@assumption("_send_request numbers a request after the last _xid, which _submit may advance", "_xid")
def _(client: Any) -> None:
    connection = client._connection
    numbers: list[int] = []

    def submit(_request: Any, _timeout: float, xid: int) -> None:
        numbers.append(xid)
        connection._xid += 63

    connection._xid, connection._submit = 4, submit
    connection._read_sock, write_sock = socket.socketpair()
    with connection._read_sock, write_sock:
        write_sock.send(b"\0\0")
        client._queue.extend([(GetData("/x", None), Answer())] * 2)
        connection._send_request(3.0, 2.0)
        connection._send_request(3.0, 2.0)
    assert numbers == [5, 69]
    assert [xid for _, _, xid in client._pending] == numbers


@assumption("a connection without requests in its queue reads one byte")
def _(client: Any) -> None:
    connection = client._connection
    connection._read_sock, write_sock = socket.socketpair()
    with connection._read_sock, write_sock:
        write_sock.send(b"\0\0")
        connection._send_request(3.0, 2.0)
        assert connection._read_sock.recv(9) == b"\0"


@assumption(
    "_submit reads the type of a request, and then serializes it, at the moment of sending", "_submit", "_write"
)
def _(client: Any) -> None:
    steps: list[str] = []

    class Request:
        @property
        def type(self) -> int:
            steps.append("type")
            return 4

        def serialize(self) -> bytes:
            steps.append("serialize")
            return b"body"

    connection = client._connection
    connection._write = written = Recorder()
    connection._submit(Request(), 2.0, 5)
    body = int_struct.pack(5) + int_struct.pack(4) + b"body"
    assert written.calls == [(int_struct.pack(len(body)) + body, 2.0)]
    assert steps[0] == "type"
    assert steps[-1] == "serialize"
    assert steps.count("serialize") == 1


# Receiving


def _framed(*frames: bytes) -> Callable[[int, float], bytes]:
    """Replace `_read` by these frames, each after its length."""
    parts = iter([part for frame in frames for part in (int_struct.pack(len(frame)), frame)])

    def read(length: int, timeout: float) -> bytes:
        part = next(parts)
        assert (len(part), timeout) == (length, 2.0)
        return part

    return read


HEADER = ReplyHeader(5, 9, 0)


def _reply(xid: int, error: int, body: bytes = b"") -> bytes:
    return int_struct.pack(xid) + (9).to_bytes(8, "big") + int_struct.pack(error) + body


@assumption("_read_header reads a length and an answer by _read(length, timeout)", "_read_header", "_read")
def _(client: Any) -> None:
    client._connection._read = _framed(_reply(5, 0, b"body"))
    header, answer, offset = client._connection._read_header(2.0)
    assert (header.xid, header.zxid, header.err) == (5, 9, 0)
    assert answer[offset:] == b"body"


@assumption("_invoke sends by _submit, and decodes the answer to a request without an xid")
def _(client: Any) -> None:
    connection = client._connection
    connection._submit, connection._read = Recorder(), _framed(b"body")
    request = SimpleNamespace(type=None, deserialize=lambda data, offset: (data[offset:], len(data)))
    assert connection._invoke(2.0, request) == (b"body", None)
    assert connection._submit.calls == [(request, 2.0, None)]


@assumption("_invoke reads the answer to a request with an xid by _read_header")
def _(client: Any) -> None:
    connection = client._connection
    connection._submit, connection._read_header = Recorder(), Recorder((ReplyHeader(AUTH_XID, 9, 0), b"", 0))
    assert connection._invoke(2.0, Auth(0, "digest", "u:p"), xid=AUTH_XID) == 9
    assert connection._read_header.calls == [(2.0,)]


@assumption(
    "_read_socket passes events to _read_watch_event and answers to _read_response",
    "_read_socket",
    "_read_watch_event",
    "_read_response",
)
def _(client: Any) -> None:
    connection = client._connection
    connection._read_watch_event, connection._read_response = Recorder(), Recorder("the response")
    answers = {xid: (ReplyHeader(xid, 9, 0), b"body", 16) for xid in (WATCH_XID, PING_XID, 5)}
    for xid in (WATCH_XID, PING_XID):
        connection._read_header = Recorder(answers[xid])
        assert connection._read_socket(2.0) is None
    connection._read_header = Recorder(answers[5])
    assert connection._read_socket(2.0) == "the response"
    assert connection._read_watch_event.calls == [(b"body", 16)]
    assert connection._read_response.calls == [answers[5]]


@assumption("_read_response decodes the answer to the oldest pending request")
def _(client: Any) -> None:
    connection, answer = client._connection, Answer()
    request = SimpleNamespace(type=4, deserialize=lambda data, offset: data[offset:])
    client._pending.append((request, answer, 5))
    connection._read_response(HEADER, b"a body", 2)
    assert answer.results == [b"body"]
    assert not client._pending
    assert client.last_zxid == 9


@assumption("_read_response turns the error of an answer into an exception")
def _(client: Any) -> None:
    answer = Answer()
    client._pending.append((GetData("/x", None), answer, 5))
    client._connection._read_response(ReplyHeader(5, 9, NoNodeError.code), b"", 0)
    assert [type(each) for each in answer.results] == [NoNodeError]


@assumption("_read_response chooses the kind of a watch by the class of the request")
def _(client: Any) -> None:
    client._stopped.clear()
    client._pending.append((GetChildren("/x", print), Answer(), 5))
    client._connection._read_response(HEADER, int_struct.pack(0), 0)
    assert client._child_watchers["/x"] == {print}
    assert not client._data_watchers.get("/x")


@assumption("_socket_error_handling turns an error of the socket into ConnectionDropped", "_socket_error_handling")
def _(client: Any) -> None:
    with pytest.raises(ConnectionDropped) as caught, client._connection._socket_error_handling():
        raise OSError("no route")
    assert isinstance(caught.value.__context__, OSError)


@assumption("the completion queue of a handler takes callables, and runs them on another thread")
def _(client: Any) -> None:
    ran, threads = threading.Event(), list[threading.Thread]()
    client.handler.start()
    try:
        client.handler.completion_queue.put(lambda: (threads.append(threading.current_thread()), ran.set()))
        assert ran.wait(10)
        assert threads != [threading.current_thread()]
    finally:
        client.handler.stop()


@pytest.mark.parametrize("text", ASSUMPTIONS)
def test_kazoo_is_as_assumed(text: str) -> None:
    ASSUMPTIONS[text](new_client())


def test_every_private_name_that_is_used_is_checked() -> None:
    used = {
        name
        for path in (ROOT / Path(KAZOO_COMPAT)).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if (name := _kazoo_private_name(node)) is not None
    }
    assert used <= CHECKED_NAMES
    assert CHECKED_NAMES <= KAZOO_PRIVATE_NAMES
