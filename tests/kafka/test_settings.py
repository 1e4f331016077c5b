"""What a Kafka client's properties mean for connections and for librdkafka, and which are refused."""

from __future__ import annotations

import pickle
import ssl
import traceback
from pathlib import Path
from typing import Any

import pytest
import trustme
from confluent_kafka import Consumer
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509 import load_pem_x509_certificate

from zkgroups.input_errors import InvalidOptionError
from zkgroups.kafka import read_properties
from zkgroups.kafka.client_settings import client_settings, librdkafka_settings
from zkgroups.kafka.wire.login import Kerberos, OAuth, Plain, Scram
from zkgroups.testing import KafkaBroker

from .test_logins import properties_of

PASSWORD = "the-s3cret;\\ \"of' anna"
JAAS = "org.apache.kafka.common.security.{}LoginModule required {};"
SASL = {"security.protocol": "SASL_PLAINTEXT"}


def jaas(mechanism: str, module: str, options: str) -> dict[str, str]:
    return SASL | {"sasl.mechanism": mechanism, "sasl.jaas.config": JAAS.format(module, options)}


def test_settings_of_java_are_carried_over_or_have_javas_defaults() -> None:
    found = client_settings({})
    assert (found.security.tls, found.security.login, found.client_id) == (None, None, "zkgroups")
    assert (found.connect_timeout, found.request_timeout) == (10.0, 30.0)
    properties = {"client.id": "night", "request.timeout.ms": "5000", "socket.connection.setup.timeout.ms": "250"}
    found = client_settings(properties)
    assert (found.client_id, found.connect_timeout, found.request_timeout) == ("night", 0.25, 5.0)


@pytest.mark.parametrize(
    ("properties", "login"),
    [
        (
            jaas("PLAIN", "plain.Plain", 'username="anna" password="p;\\"\\\\w"'),
            Plain("anna", 'p;"\\w'),
        ),
        (
            jaas("SCRAM-SHA-512", "scram.Scram", "password='p w' username = anna tokenauth=\"true\""),
            Scram("anna", "p w", "SCRAM-SHA-512"),
        ),
        (jaas("SCRAM-SHA-256", "plain.Plain", "username=a password=b"), Scram("a", "b", "SCRAM-SHA-256")),
        (SASL | {"sasl.kerberos.service.name": "kafka"}, Kerberos("kafka")),
        (
            SASL
            | {
                "sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true "
                'keyTab="/etc/anna.keytab" principal="anna@EXAMPLE" serviceName="kafka";'
            },
            Kerberos("kafka", "anna@EXAMPLE", "/etc/anna.keytab"),
        ),
    ],
)
def test_a_login_is_read_as_java_reads_it(properties: dict[str, str], login: object) -> None:
    assert client_settings(properties).security.login == login


def test_an_oauth_login_takes_its_credentials_from_either_place() -> None:
    prefix = "sasl.oauthbearer"
    url = {f"{prefix}.token.endpoint.url": "https://login.example/token"}
    by_login = jaas("OAUTHBEARER", "oauthbearer.OAuthBearer", 'clientId="a" clientSecret="b" extension_pool="p"')
    by_name = {f"{prefix}.client.credentials.client.id": "a", f"{prefix}.client.credentials.client.secret": "b"}
    for properties, extensions in ((by_login, {"pool": "p"}), (SASL | {"sasl.mechanism": "OAUTHBEARER"} | by_name, {})):
        login = client_settings(properties | url).security.login
        assert isinstance(login, OAuth)
        assert login.extensions == extensions
        assert (getattr(login.token, "client", None), getattr(login.token, "secret", None)) == ("a", "b")


@pytest.mark.parametrize(("algorithm", "checked"), [("", False), ("none", False), ("https", True), ("HTTPS", True)])
def test_the_host_name_is_checked_unless_it_is_switched_off(algorithm: str, checked: bool) -> None:
    properties = {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": algorithm}
    tls = client_settings(properties).security.tls
    assert tls is not None
    assert (tls.check_hostname, tls.verify_mode) == (checked, ssl.CERT_REQUIRED)


HARMLESS = [
    "group.id", "auto.offset.reset", "enable.auto.commit", "auto.commit.interval.ms", "key.deserializer",
    "value.serializer", "acks", "retries", "linger.ms", "batch.size", "compression.type", "max.poll.records",
    "session.timeout.ms", "heartbeat.interval.ms", "fetch.min.bytes", "isolation.level", "bootstrap.servers",
    "metrics.recording.level", "ssl.enabled.protocols", "ssl.protocol", "client.dns.lookup", "retry.backoff.ms",
    "reconnect.backoff.max.ms", "metadata.max.age.ms", "sasl.login.refresh.window.factor", "transactional.id",
    "partition.assignment.strategy", "group.instance.id", "group.protocol", "connections.max.idle.ms",
    "sasl.kerberos.kinit.cmd", "allow.auto.create.topics", "default.api.timeout.ms", "interceptor.classes",
]  # fmt: skip


@pytest.mark.parametrize("name", HARMLESS)
def test_settings_of_consumers_and_producers_have_no_effect(name: str) -> None:
    assert client_settings({name: "x"}) == client_settings({})


REFUSED: list[tuple[dict[str, str], str]] = [
    (SASL | {"sasl.mechanism": "PLAIN"}, "one of the login modules PlainLoginModule, ScramLoginModule"),
    (jaas("PLAIN", "plain.Plain", f'password="{PASSWORD}"'), "must have a username and a password"),
    (jaas("GSSAPI", "plain.Plain", f"password={PASSWORD}"), "PlainLoginModule is for PLAIN, SCRAM-SHA-256"),
    (jaas("PLAIN", "example.Own", f"password={PASSWORD}"), "must begin with one of the login modules"),
    (
        SASL | {"sasl.mechanism": "PLAIN", "sasl.jaas.config": PASSWORD},
        "must begin with one of the login modules PlainLoginModule",
    ),
    (
        jaas("OAUTHBEARER", "oauthbearer.OAuthBearer", f'clientSecret="{PASSWORD}"'),
        "must be an https:// address for OAuth",
    ),
    (SASL, "sasl.kerberos.service.name"),
    ({"security.protocol": "TELNET"}, "'TELNET', but it must be one of PLAINTEXT, SSL"),
    (SASL | {"sasl.mechanism": "NTLM"}, "'NTLM', but it must be one of PLAIN"),
    ({"no.such.setting": PASSWORD}, "no.such.setting: zkgroups supports no such setting of Java clients"),
    ({"sasl.pasword": PASSWORD}, "sasl.pasword"),
    ({PASSWORD: ""}, "a setting whose name is (not shown)"),
    ({"S3cret,\x01\x83": PASSWORD}, "a setting whose name is (not shown)"),
    ({"stats_cb": PASSWORD}, "zkgroups supports no such setting"),
    (SASL | {"sasl.mechanism": "PLAIN", "sasl.jaas.config": f"{PASSWORD}\0"}, "cannot be sent"),
    ({"request.timeout.ms": "soon"}, "request.timeout.ms is 'soon', but it must be a whole number"),
    ({"request.timeout.ms": "0"}, "1 or more"),
    ({"request.timeout.ms": "9" * 5000}, "1 or more"),
    ({"client.id": "\ud800"}, "cannot be sent"),
    ({"ssl.cipher.suites": "x"}, "zkgroups supports no such setting"),
    ({"sasl.login.callback.handler.class": "com.example.Own"}, "zkgroups supports no such setting"),
    ({"sasl.username": "anna"}, "it is a setting of librdkafka: set sasl.jaas.config instead"),
    ({"sasl.password": PASSWORD}, "it is a setting of librdkafka: set sasl.jaas.config instead"),
    ({"sasl.mechanisms": "PLAIN"}, "set sasl.mechanism instead"),
    ({"ssl.ca.location": "/ca.pem"}, "set ssl.truststore.location and ssl.truststore.type=PEM instead"),
    ({"ssl.key.pem": PASSWORD}, "set ssl.keystore.key instead"),
    ({"socket.timeout.ms": "1"}, "set request.timeout.ms instead"),
    ({"debug": "all"}, "remove it"),
    (
        {"security.protocol": "SSL", "ssl.truststore.location": "/none.pem"},
        "'/none.pem', but it cannot be read: No such",
    ),
    ({"security.protocol": "SSL", "ssl.truststore.certificates": PASSWORD}, "cannot be read"),
    ({"security.protocol": "SSL", "ssl.keystore.key": PASSWORD}, "ssl.keystore.key: its certificates or its key"),
]


@pytest.mark.parametrize(("properties", "words"), REFUSED)
def test_settings_that_cannot_be_used_are_refused_with_advice_and_without_secrets(
    properties: dict[str, str], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        client_settings(properties)

    assert words in str(caught.value)
    assert "s3cret" not in ("".join(traceback.format_exception(caught.value)) + repr(vars(caught.value))).lower()
    assert b"s3cret" not in pickle.dumps(caught.value).lower()
    assert capfd.readouterr() == ("", "")


def _store(password: bytes = b"a password") -> tuple[bytes, str]:
    """A PKCS12 store with a key, and the key as PEM."""
    issued = trustme.CA().issue_cert("anna@example.com")
    key: Any = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    certificate = load_pem_x509_certificate(issued.cert_chain_pems[0].bytes())
    secret = serialization.BestAvailableEncryption(password)
    data = pkcs12.serialize_key_and_certificates(b"anna", key, certificate, None, secret)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret)
    return data, key.private_bytes(*form).decode() + issued.cert_chain_pems[0].bytes().decode()


def test_stores_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    data, pem = _store()
    files = {"me.p12": data, "me.jks": b"\xfe\xed\xfe\xed" + b"s3cret", "me.pem": pem.encode(), "empty": b""}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    for name, more, words in (
        ("me.p12", {"ssl.keystore.type": "PKCS12", "ssl.keystore.password": "wr0ng"}, "check the contents, the type"),
        ("me.p12", {"ssl.keystore.type": "PEM"}, "check the contents, the type"),
        ("me.pem", {"ssl.keystore.type": "PEM"}, "check the contents, the type and the password"),
        ("me.pem", {"ssl.keystore.type": "PEM", "ssl.key.password": "wr0ng"}, "check the contents"),
        ("empty", {"ssl.keystore.type": "PEM"}, "check the contents"),
        ("me.jks", {}, "it has the type JKS, which is not supported: convert it with keytool"),
    ):
        location = {"security.protocol": "SSL", "ssl.keystore.location": str(tmp_path / name)}
        with pytest.raises(InvalidOptionError, match=words) as caught:
            client_settings(location | more)
        assert str(tmp_path / name) in str(caught.value)
        shown = "".join(traceback.format_exception(caught.value))
        assert not any(secret in shown for secret in ("s3cret", "wr0ng"))


@pytest.mark.parametrize(
    "text",
    ["a" * 200_000, "a." * 100_000, "a " * 100_000, "a = " * 50_000, 'a="\\' * 50_000],
    ids=["letters", "names", "words", "signs", "quotes"],
)
def test_a_long_login_without_a_password_is_refused_at_once(text: str) -> None:
    """Time that grows with the square of the length would be minutes here."""
    with pytest.raises(InvalidOptionError, match="must have a username and a password"):
        client_settings(jaas("PLAIN", "plain.Plain", text))


# The properties of a Java client as settings of librdkafka, in which confluent-kafka connects and logs in


BOTH = {"client.id": "night", "security.protocol": "SASL_PLAINTEXT"}
"""Settings of both."""
OAUTH = 'clientId="anna" clientSecret="sesame" scope="read" extension_logicalCluster="lkc"'


@pytest.mark.parametrize(
    ("properties", "settings"),
    [
        (
            {
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.jaas.config": JAAS.format("scram.Scram", "username=a password=b"),
            },
            {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "a", "sasl.password": "b"},
        ),
        (
            {
                "sasl.jaas.config": JAAS.format(
                    "x.Krb5", 'useKeyTab=true keyTab="/a.keytab" principal="a@B" serviceName="kafka"'
                )
            },
            {
                "sasl.mechanism": "GSSAPI",
                "sasl.kerberos.service.name": "kafka",
                "sasl.kerberos.principal": "a@B",
                "sasl.kerberos.keytab": "/a.keytab",
            },
        ),
        (
            {
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.token.endpoint.url": "https://login/token",
                "sasl.jaas.config": JAAS.format("oauthbearer.OAuthBearer", OAUTH),
            },
            {
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.token.endpoint.url": "https://login/token",
                "sasl.oauthbearer.client.id": "anna",
                "sasl.oauthbearer.client.secret": "sesame",
                "sasl.oauthbearer.scope": "read",
                "sasl.oauthbearer.extensions": "logicalCluster=lkc",
            },
        ),
    ],
    ids=["password", "kerberos", "oauth"],
)
def test_logins_are_carried_over(properties: dict[str, str], settings: dict[str, str]) -> None:
    assert librdkafka_settings(BOTH | properties) == BOTH | settings


@pytest.mark.parametrize("check", ["https", ""])
def test_certificates_are_carried_over_and_librdkafka_accepts_them(tmp_path: Path, check: str) -> None:
    authority = trustme.CA()
    own = authority.issue_cert("client")
    authority.cert_pem.write_to_path(tmp_path / "trust.pem")
    (tmp_path / "own.pem").write_bytes(own.private_key_and_cert_chain_pem.bytes())
    settings = librdkafka_settings(
        {
            "security.protocol": "ssl",
            "ssl.truststore.location": str(tmp_path / "trust.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.keystore.location": str(tmp_path / "own.pem"),
            "ssl.keystore.type": "PEM",
            "ssl.endpoint.identification.algorithm": check,
        }
    )
    assert settings["security.protocol"] == "SSL"
    assert settings["ssl.endpoint.identification.algorithm"] == (check or "none")
    assert settings["ssl.ca.pem"] == authority.cert_pem.bytes().decode()
    assert {"ssl.certificate.pem", "ssl.key.pem"} < settings.keys()
    Consumer(settings | {"group.id": "any"}).close()


def test_a_broker_with_passwords_accepts_the_login(own: KafkaBroker, tmp_path: Path) -> None:
    settings = librdkafka_settings(read_properties(properties_of(tmp_path, "anna")))
    client = Consumer(settings | {"bootstrap.servers": own.sasl_address, "group.id": "any", "log_level": "0"})
    assert "orders" in client.list_topics(timeout=60).topics
    client.close()
