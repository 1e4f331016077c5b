"""Answers of a token endpoint that are not tokens, and addresses that contain secrets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from zkgroups.kafka.wire.errors import NotSentError
from zkgroups.kafka.wire.oidc import ClientCredentials

SECRET = "pl4nted"

Endpoint = Callable[[bytes], str]


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    """Start an endpoint that sends these bytes to every client."""
    with ExitStack() as stack:

        def start(answer: bytes) -> str:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            stack.callback(listener.shutdown, socket.SHUT_RDWR)  # closing alone does not wake the thread
            threading.Thread(target=_serve, args=(listener, answer), daemon=True).start()
            return f"http://127.0.0.1:{listener.getsockname()[1]}/token"

        yield start


def _serve(listener: socket.socket, answer: bytes) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        with client:
            _read_request(client)
            client.sendall(answer)
            # Closing with unread bytes would reset the connection, and the answer would be lost.
            client.shutdown(socket.SHUT_WR)
            while client.recv(65536):
                pass


def _read_request(client: socket.socket) -> None:
    received = b""
    while b"\r\n\r\n" not in received and (more := client.recv(65536)):
        received += more


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (f"http://anna:{SECRET}@127.0.0.1:1/token", "http://127.0.0.1:1/token"),
        (f"http://127.0.0.1:1/token?key={SECRET}", "http://127.0.0.1:1/token"),
        (f"http://127.0.0.1:1/token?key={SECRET} x", "not a valid URL"),
        (f"http://[{SECRET}/token", "not a valid URL"),
        (f"http://{'a' * 70}.test/token?key={SECRET}", "not a valid URL"),
    ],
)
def test_a_secret_in_the_address_of_a_token_endpoint_is_never_shown(url: str, reason: str) -> None:
    with pytest.raises(NotSentError, match=reason) as caught:
        ClientCredentials(url, "anna", SECRET)()
    assert SECRET not in str(caught.value)


def test_an_endpoint_that_does_not_speak_http_is_an_error_that_shows_nothing_of_its_answer(endpoint: Endpoint) -> None:
    with pytest.raises(NotSentError, match="its answer is not HTTP") as caught:
        ClientCredentials(endpoint(SECRET.encode() * 5), "anna", SECRET)()
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("lifetime", ["NaN", "Infinity", '"nan"'])
def test_a_token_whose_lifetime_is_not_a_number_of_seconds_is_used_once(endpoint: Endpoint, lifetime: str) -> None:
    body = f'{{"access_token":"t","expires_in":{lifetime}}}'
    credentials = ClientCredentials(endpoint(f"HTTP/1.0 200 OK\r\n\r\n{body}".encode()), "anna", SECRET)
    assert credentials() == "t"
    credentials.url = "http://127.0.0.1:1/token"
    with pytest.raises(NotSentError):
        credentials()
