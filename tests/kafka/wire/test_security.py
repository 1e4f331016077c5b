"""TLS and every kind of login, on a real broker."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509 import load_pem_x509_certificate

from zkgroups.exceptions import AuthenticationError, CertificateError
from zkgroups.kafka.wire import codec
from zkgroups.kafka.wire.cluster import Cluster
from zkgroups.kafka.wire.errors import WireError

from .conftest import PASSWORD, SESSION_MS, Certificates, SecureBroker, chain_of, key_of, with_cluster

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(1000)]

USERS = {"PLAIN": "anna", "SCRAM-SHA-256": "anna=,", "SCRAM-SHA-512": "anna=,"}


async def groups(cluster: Cluster) -> int:
    answer = await cluster.ask(None, codec.ListGroupsRequest(states_filter=[], types_filter=[]))
    return int(answer.error_code)


def trust(certificates: Certificates) -> dict[str, str]:
    return {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.file),
    }


def password_login(mechanism: str, password: str = PASSWORD) -> dict[str, str]:
    quoted = password.replace("\\", "\\\\").replace('"', '\\"')
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="{USERS[mechanism]}" password="{quoted}";'
        ),
    }


def test_tls_needs_only_the_authority(secure: SecureBroker, certificates: Certificates) -> None:
    assert with_cluster(secure.at("TLS"), groups, trust(certificates)) == 0
    inline = {"security.protocol": "SSL", "ssl.truststore.certificates": certificates.trusted.replace("\n", " ")}
    assert with_cluster(secure.at("TLS"), groups, inline) == 0


def identities(certificates: Certificates, folder: Path) -> Iterator[Mapping[str, str]]:
    """The client's certificate in each way that Java has."""
    key, chain = key_of(certificates.client), chain_of(certificates.client)
    yield {"ssl.keystore.type": "PEM", "ssl.keystore.key": key, "ssl.keystore.certificate.chain": chain}
    (folder / "client.pem").write_text(key + chain)
    yield {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(folder / "client.pem")}
    private = serialization.load_pem_private_key(key.encode(), None)
    secret = serialization.BestAvailableEncryption(b"a key")
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret)
    (folder / "encrypted.pem").write_text(private.private_bytes(*form).decode() + chain)
    location = {"ssl.keystore.location": str(folder / "encrypted.pem"), "ssl.key.password": "a key"}
    yield location | {"ssl.keystore.type": "PEM"}
    certificate = load_pem_x509_certificate(chain.encode())
    store = pkcs12.serialize_key_and_certificates(b"anna", private, certificate, None, secret)  # type: ignore[arg-type]
    (folder / "client.p12").write_bytes(store)
    location = {"ssl.keystore.location": str(folder / "client.p12"), "ssl.keystore.password": "a key"}
    yield location | {"ssl.keystore.type": "PKCS12"}
    yield location


def test_client_certificates_are_sent(secure: SecureBroker, certificates: Certificates, tmp_path: Path) -> None:
    for identity in identities(certificates, tmp_path):
        assert with_cluster(secure.at("MUTUAL"), groups, trust(certificates) | identity) == 0


@pytest.mark.parametrize("mechanism", USERS)
@pytest.mark.parametrize("listener", ["LOGIN", "BOTH"])
def test_passwords_are_accepted(
    secure: SecureBroker, certificates: Certificates, mechanism: str, listener: str
) -> None:
    protocol = {"security.protocol": "SASL_SSL" if listener == "BOTH" else "SASL_PLAINTEXT"}
    properties = trust(certificates) | password_login(mechanism) | protocol
    assert with_cluster(secure.at(listener), groups, properties) == 0


REFUSED: list[tuple[str, dict[str, str], type[Exception], str]] = [
    ("MUTUAL", {}, CertificateError, "TLS failed: .*certificate"),
    *[
        ("LOGIN", password_login(mechanism, "a wrong s3cret"), AuthenticationError, "Authentication failed")
        for mechanism in USERS
    ],
    ("LOGIN", {"security.protocol": "SASL_PLAINTEXT", "sasl.kerberos.service.name": "kafka"}, Exception, "GSSAPI"),
    ("SASL", password_login("SCRAM-SHA-512"), AuthenticationError, "not support SCRAM-SHA-512; its mechanisms: PLAIN"),
    ("PLAINTEXT", password_login("PLAIN"), AuthenticationError, "no login at this port: check security.protocol"),
]


@pytest.mark.parametrize(("listener", "properties", "kind", "words"), REFUSED)
def test_what_a_broker_refuses_is_named_at_once(
    secure: SecureBroker,
    certificates: Certificates,
    listener: str,
    properties: dict[str, str],
    kind: type[Exception],
    words: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    where = {"SASL": lambda: secure.sasl_address, "PLAINTEXT": lambda: secure.address}
    address = where.get(listener, lambda: secure.at(listener))()
    with pytest.raises(kind, match=words) as caught:
        with_cluster(address, groups, trust(certificates) | properties)

    assert not isinstance(caught.value, WireError)
    assert "s3cret" not in f"{caught.value!r} {caught.value.__cause__!r} {caplog.text}"


def test_an_unknown_authority_and_another_host_are_named_at_once(
    secure: SecureBroker, certificates: Certificates
) -> None:
    unknown = {"security.protocol": "SSL", "ssl.truststore.certificates": trustme.CA().cert_pem.bytes().decode()}
    with pytest.raises(CertificateError, match=r"127.0.0.1:\d+: its certificate is not accepted: .*issuer"):
        with_cluster(secure.at("TLS"), groups, unknown)

    port = secure.at("TLS").rpartition(":")[2]
    with pytest.raises(CertificateError, match=r"its certificate is not accepted: Hostname mismatch.*localhost"):
        with_cluster(f"localhost:{port}", groups, trust(certificates))
    unchecked = trust(certificates) | {"ssl.endpoint.identification.algorithm": ""}
    assert with_cluster(f"localhost:{port}", groups, unchecked) == 0


def test_a_client_with_the_wrong_protocol_learns_the_right_one(secure: SecureBroker) -> None:
    with pytest.raises(WireError, match=r"expects TLS: set security.protocol=SSL"):
        with_cluster(secure.at("TLS"), groups)
    with pytest.raises(WireError, match="perhaps it expects no TLS"):
        with_cluster(secure.at("LOGIN"), groups, {"security.protocol": "SSL"})


def test_a_login_is_repeated_before_its_session_ends(secure: SecureBroker) -> None:
    """A broker closes the connection of a client whose session has ended."""

    async def use(cluster: Cluster) -> None:
        [node] = (await cluster.metadata([])).brokers
        end = time.monotonic() + 1.5 * SESSION_MS / 1000
        while (asked := time.monotonic()) < end:
            try:
                answer = await cluster.ask(node, codec.ListGroupsRequest(states_filter=[], types_filter=[]))
                assert answer.error_code == 0
            except WireError:
                # A session can only end under way if the machine stands still for a while.
                assert time.monotonic() - asked > 0.1 * SESSION_MS / 1000
            await asyncio.sleep(0.1)

    with_cluster(secure.at("LOGIN"), use, password_login("SCRAM-SHA-256"), links=1)


def _unsecured_token(user: str) -> str:
    """A token that a broker accepts without a key, as its settings say."""
    now = int(time.time())
    parts = ({"alg": "none"}, {"sub": user, "iat": now, "exp": now + 600})
    texts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts]
    return ".".join((*texts, ""))


class Provider(ThreadingHTTPServer):
    """A token endpoint that knows one client."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _TokenEndpoint)
        self.asked: list[tuple[str | None, str]] = []
        self.answer: tuple[int, dict[str, Any] | None] = (200, None)
        self.url = f"http://127.0.0.1:{self.server_port}/token"

    def properties(self, secret: str = PASSWORD) -> dict[str, str]:
        quoted = secret.replace("\\", "\\\\").replace('"', '\\"')
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": self.url,
            "sasl.login.callback.handler.class": (
                "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
            ),
            "sasl.jaas.config": (
                "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
                f'clientId="anna" clientSecret="{quoted}" scope="kafka";'
            ),
        }


class _TokenEndpoint(BaseHTTPRequestHandler):
    server: Provider

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.asked.append((self.headers["Authorization"], body))
        status, answer = self.server.answer
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(answer or {"access_token": _unsecured_token("anna"), "expires_in": 600}).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_token_comes_from_the_provider_once_for_many_connections(secure: SecureBroker, provider: Provider) -> None:
    async def use(cluster: Cluster) -> None:
        [node] = (await cluster.metadata([])).brokers
        asked = [codec.ListGroupsRequest(states_filter=[], types_filter=[]) for _ in range(8)]
        answers = await asyncio.gather(*(cluster.ask(node, each) for each in asked))
        assert {answer.error_code for answer in answers} == {0}

    with_cluster(secure.at("LOGIN"), use, provider.properties())

    client = base64.b64encode(f"anna:{quote_plus(PASSWORD)}".encode()).decode()
    assert provider.asked == [(f"Basic {client}", "grant_type=client_credentials&scope=kafka")]


BAD_ANSWERS: list[tuple[int, dict[str, Any] | None, type[Exception], str]] = [
    (401, {"error": "s3cret"}, AuthenticationError, "refused client 'anna' with status 401"),
    (200, {"token": "s3cret"}, AuthenticationError, "did not answer with a token"),
    (200, {"access_token": "a.s3cret.token"}, AuthenticationError, "login at .* failed"),
    (302, None, AuthenticationError, "status 302"),
    (503, None, WireError, "answered with status 503"),
]


@pytest.mark.parametrize(("status", "answer", "kind", "words"), BAD_ANSWERS)
def test_a_token_that_is_refused_is_named_and_not_shown(
    secure: SecureBroker,
    provider: Provider,
    status: int,
    answer: dict[str, Any] | None,
    kind: type[Exception],
    words: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    provider.answer = (status, answer)

    with pytest.raises(kind, match=words) as caught:
        with_cluster(secure.at("LOGIN"), groups, provider.properties())

    assert "s3cret" not in "".join(traceback.format_exception(caught.value)) + caplog.text
