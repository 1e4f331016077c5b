"""Brokers that do not prove to know the password, logins without their library, and token endpoints that lie."""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec

import pytest

from zkgroups.exceptions import AuthenticationError, MissingDependencyError
from zkgroups.kafka.wire.errors import NotSentError
from zkgroups.kafka.wire.login import ClientCredentials, Kerberos, OAuth, Plain, Scram

SALT = base64.b64encode(b"salt").decode()
Change = Callable[[dict[str, str]], object]


def log_in(change: Change, password: str = "pencil") -> None:
    """Log in at a server that knows a password, after a change to its first answer."""
    exchange = Scram("anna", "pencil", "SCRAM-SHA-256").exchange("host")
    first = next(exchange).decode().removeprefix("n,,")
    challenge = {"r": first.partition("r=")[2] + "more", "s": SALT, "i": "4096"}
    change(challenge)
    server_first = ",".join(f"{name}={value}" for name, value in challenge.items())
    final = exchange.send(server_first.encode()).decode()
    messages = f"{first},{server_first},{final.rpartition(',p=')[0]}".encode()
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), b"salt", 4096)
    signature = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), messages, "sha256")
    with pytest.raises(StopIteration):
        exchange.send(b"v=" + base64.b64encode(signature))


def test_a_server_that_knows_the_password_is_trusted() -> None:
    log_in(lambda _: None)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda found: found.update(r="another"), "nonce"),
        (lambda found: found.update(r=found["r"].removesuffix("more")), "nonce"),
        (lambda found: found.pop("r"), "nonce"),
        (lambda found: found.update(i="4095"), "asks for '4095' iterations"),
        (lambda found: found.update(i="1000001"), "asks for '1000001' iterations"),
        (lambda found: found.update(i="9" * 5000), "asks for '99999999999999999999' iterations"),
        (lambda found: found.update(i="many"), "asks for 'many' iterations"),
        (lambda found: found.update(s="%%%"), "cannot be read"),
        (lambda found: found.update(e="unknown-user"), "refused the login: unknown-user"),
    ],
)
def test_a_server_that_lies_is_not_sent_a_proof(change: Change, words: str) -> None:
    with pytest.raises(AuthenticationError, match=words):
        log_in(change)


def test_a_server_that_does_not_know_the_password_is_not_trusted() -> None:
    with pytest.raises(AuthenticationError, match="the broker did not prove that it knows the password"):
        log_in(lambda _: None, password="another")


def test_secrets_are_not_in_what_logins_show() -> None:
    for login in (Plain("anna", "s3cret"), Scram("anna", "s3cret"), OAuth(lambda: "s3cret")):
        assert "s3cret" not in repr(login)


@pytest.mark.skipif(find_spec("gssapi") is not None, reason="gssapi is installed")
def test_a_kerberos_login_names_the_missing_package() -> None:
    with pytest.raises(MissingDependencyError, match="pip install gssapi"):
        next(Kerberos("kafka").exchange("host"))


# Answers of a token endpoint that are not tokens, and addresses that contain secrets


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
