"""Observe the requests and answers of a client. kazoo reports neither."""

from __future__ import annotations

from typing import Any, Protocol

from kazoo.protocol.serialization import Connect


class TrafficListener(Protocol):
    """Receives the traffic of one client, on kazoo's connection thread."""

    def on_request(self, xid: int | None, request_type: Any) -> None:
        """Called before a request is sent. `xid` is None for the request that makes a connection."""

    def on_answer(self, header: Any, body: bytes, offset: int) -> None:
        """Called with each answer and each watch event. The result begins at `offset` of `body`."""

    def on_session(self, session_id: int, timeout: float) -> None:
        """Called when a server grants or resumes a session, with the timeout in seconds."""


def observe_traffic(client: Any, listener: TrafficListener) -> None:
    """Report all traffic of the client to `listener`."""
    connection = client._connection
    submit, read_header, invoke = connection._submit, connection._read_header, connection._invoke

    def observed_submit(request: Any, timeout: float, xid: int | None = None) -> Any:
        listener.on_request(xid, request.type)
        return submit(request, timeout, xid)

    def observed_read_header(timeout: float) -> Any:
        header, body, offset = read_header(timeout)
        listener.on_answer(header, body, offset)
        return header, body, offset

    def observed_invoke(timeout: float, request: Any, xid: int | None = None) -> Any:
        answer = invoke(timeout, request, xid)
        if isinstance(request, Connect):
            granted = answer[0]
            if granted.time_out > 0:  # an expired session has none
                listener.on_session(granted.session_id, granted.time_out / 1000)
        return answer

    connection._submit, connection._read_header, connection._invoke = (
        observed_submit,
        observed_read_header,
        observed_invoke,
    )
