"""What zkgroups assumes about kazoo's private parts. No server.

If a new version of kazoo breaks an assumption, a test names it, and `kazoo_compat` must be adapted before the upper
bound of the version in `setup.cfg` is raised. `tests/simulation` runs all of kazoo, and detects the others.
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
from kazoo.protocol.connection import PING_XID, WATCH_XID
from kazoo.protocol.serialization import Connect, GetChildren, GetData, ReplyHeader, int_struct
from kazoo.protocol.states import KeeperState

from tests.waiting import LONGEST

from ..test_architecture import KAZOO_COMPAT, KAZOO_PRIVATE_NAMES, ROOT, _kazoo_private_name

GRANTED = Connect(0, 0, 9_000, 7, b"p" * 16, False)
HEADER = ReplyHeader(5, 9, 0)


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
        return self._result


@pytest.fixture
def client() -> Any:
    return KazooClient("127.0.0.1:1", client_id=(5, b"o" * 16), timeout=12.5)


@pytest.fixture
def connection(client: Any) -> Any:
    """The connection of the client, and the pair of sockets that wakes it."""
    connection = client._connection
    connection._read_sock, connection._write_sock = socket.socketpair()
    with connection._read_sock, connection._write_sock:
        yield connection


def test_every_private_name_that_is_used_exists(client: Any) -> None:
    used = {
        name
        for path in (ROOT / Path(KAZOO_COMPAT)).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if (name := _kazoo_private_name(node)) is not None
    }
    assert used <= KAZOO_PRIVATE_NAMES
    assert [name for name in used if not hasattr(client, name) and not hasattr(client._connection, name)] == []


def test_a_client_stores_its_session_and_the_requested_timeout(client: Any) -> None:
    assert (client._session_id, client._session_passwd, client._session_timeout) == (5, b"o" * 16, 12_500)
    client._reset_session()
    assert (client._session_id, client._session_passwd) == (None, bytes(16))
    assert client._stopped.is_set()
    assert not client._live.is_set()


def connect(client: Any, granted: Connect) -> tuple[Any, dict[str, Any]]:
    """Run kazoo's `_connect` with our own socket and answer. Return the request, and how the socket was opened."""
    connection, options = client._connection, dict[str, Any]()
    client.handler.create_connection = lambda **given: (
        options.update(given) or SimpleNamespace(setblocking=lambda _flag: None)
    )
    connection._invoke = invoke = Recorder((granted, None))
    connection._connect("zk1", "10.0.0.1", 2181)
    [(_timeout, request)] = invoke.calls
    return request, options


def test_connect_opens_a_socket_sends_the_stored_session_and_stores_the_granted_one(client: Any) -> None:
    request, options = connect(client, GRANTED)
    assert (options["address"], options["hostname"]) == (("10.0.0.1", 2181), "zk1")
    assert options.keys() >= {"timeout", "use_ssl", "ca", "certfile", "keyfile", "keyfile_password"}
    assert (request.session_id, request.passwd, request.time_out) == (5, b"o" * 16, 12_500)
    assert (client._session_id, client._session_passwd) == (7, b"p" * 16)
    assert client._connection._socket is not None
    with pytest.raises(SessionExpiredError):
        connect(client, Connect(0, 0, 0, 0, bytes(16), False))


def test_connect_logs_in_by_a_method_of_the_connection(client: Any) -> None:
    client._connection.sasl_options = {"mechanism": "DIGEST-MD5", "username": "u", "password": "p"}
    client._connection._authenticate_with_sasl = log_in = Recorder()
    connect(client, GRANTED)
    [(host, timeout)] = log_in.calls
    assert (host, timeout > 0) == ("zk1", True)


def test_addresses_are_tuples_of_a_host_name_an_address_and_a_port(client: Any) -> None:
    assert client._connection._expand_client_hosts() == [("127.0.0.1", "127.0.0.1", 1)]


def test_the_last_step_of_kazoos_thread_is_to_report_closed_after_connection_stopped_is_set(client: Any) -> None:
    connection, reports = client._connection, list[tuple[Any, bool]]()
    client._session_callback = lambda state: reports.append((state, connection.connection_stopped.is_set()))
    connection.zk_loop()
    assert reports == [(KeeperState.CLOSED, True)]


def test_call_refuses_requests_by_the_state_or_queues_them_and_writes_one_byte(client: Any, connection: Any) -> None:
    request = GetData("/x", None)
    for state, error in {
        KeeperState.AUTH_FAILED: AuthFailedError,
        KeeperState.CLOSED: ConnectionClosedError,
        KeeperState.EXPIRED_SESSION: SessionExpiredError,
    }.items():
        client._state, answer = state, Answer()
        client._call(request, answer)
        assert [type(each) for each in answer.results] == [error]
    assert not client._queue
    client._state, answer = KeeperState.CONNECTED, Answer()
    client._call(request, answer)
    assert list(client._queue) == [(request, answer)]
    assert connection._read_sock.recv(9) == b"\0"


def test_send_request_numbers_requests_after_the_last_xid_which_submit_may_advance(
    client: Any, connection: Any
) -> None:
    requests, submitted = [(GetData("/x", None), Answer()) for _ in range(2)], list[Any]()

    def submit(request: Any, timeout: float, xid: int) -> None:
        submitted.append((request, timeout, xid))
        connection._xid += 63

    connection._xid, connection._submit = 4, submit
    connection._write_sock.send(b"\0\0\0")
    client._queue.extend(requests)
    for _ in range(3):
        connection._send_request(3.0, 2.0)
    assert submitted == [(requests[0][0], 2.0, 5), (requests[1][0], 2.0, 69)]
    assert list(client._pending) == [(*requests[0], 5), (*requests[1], 69)]
    connection._read_sock.setblocking(False)
    with pytest.raises(BlockingIOError):
        connection._read_sock.recv(9)  # it has read one byte each time, also without a request


def test_submit_reads_the_type_of_a_request_and_then_serializes_it_at_the_moment_of_sending(client: Any) -> None:
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
    assert (steps[0], steps[-1], steps.count("serialize")) == ("type", "serialize", 1)


def test_read_header_reads_a_length_and_an_answer_by_read(client: Any) -> None:
    answer = int_struct.pack(5) + (9).to_bytes(8, "big") + int_struct.pack(0) + b"body"
    parts = iter([int_struct.pack(len(answer)), answer])
    client._connection._read = lambda _length, _timeout: next(parts)
    header, body, offset = client._connection._read_header(2.0)
    assert ((header.xid, header.zxid, header.err), body[offset:]) == ((5, 9, 0), b"body")


def test_read_socket_passes_events_and_answers_on(client: Any) -> None:
    connection = client._connection
    connection._read_watch_event, connection._read_response = Recorder(), Recorder("the response")
    answers = {xid: (ReplyHeader(xid, 9, 0), b"body", 16) for xid in (WATCH_XID, PING_XID, 5)}
    for xid, expected in ((WATCH_XID, None), (PING_XID, None), (5, "the response")):
        connection._read_header = Recorder(answers[xid])
        assert connection._read_socket(2.0) == expected
    assert connection._read_watch_event.calls == [(b"body", 16)]
    assert connection._read_response.calls == [answers[5]]


def test_read_response_answers_the_oldest_pending_request_and_chooses_watches_by_its_class(client: Any) -> None:
    first, second = Answer(), Answer()
    client._stopped.clear()
    client._pending.extend([(GetChildren("/x", print), first, 5), (GetData("/x", None), second, 5)])
    client._connection._read_response(HEADER, int_struct.pack(0), 0)
    client._connection._read_response(ReplyHeader(5, 9, NoNodeError.code), b"", 0)
    assert (first.results, [type(each) for each in second.results]) == ([[]], [NoNodeError])
    assert (client._child_watchers["/x"], client._data_watchers.get("/x") or None) == ({print}, None)
    assert (client.last_zxid, len(client._pending)) == (9, 0)


def test_an_error_of_the_socket_becomes_a_dropped_connection(client: Any) -> None:
    with pytest.raises(ConnectionDropped) as caught, client._connection._socket_error_handling():
        raise OSError("no route")
    assert isinstance(caught.value.__context__, OSError)


def test_the_completion_queue_of_a_handler_takes_callables_and_runs_them_on_another_thread(client: Any) -> None:
    ran, threads = threading.Event(), list[threading.Thread]()
    act: Callable[[], object] = lambda: (threads.append(threading.current_thread()), ran.set())  # noqa: E731
    client.handler.start()
    try:
        client.handler.completion_queue.put(act)
        assert ran.wait(LONGEST)
        assert threads != [threading.current_thread()]
    finally:
        client.handler.stop()
