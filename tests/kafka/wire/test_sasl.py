"""Brokers that do not prove to know the password, and logins without their library."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable
from importlib.util import find_spec

import pytest

from zkgroups.exceptions import AuthenticationError, MissingDependencyError
from zkgroups.kafka.wire.sasl import Kerberos, OAuth, Plain, Scram

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
