"""Properties of Kafka clients: read like Java, converted for librdkafka or refused, without showing secrets."""

from __future__ import annotations

import logging
import pickle
import traceback
from pathlib import Path

import pytest

from zkgroups.exceptions import AuthenticationError
from zkgroups.input_errors import InvalidOptionError
from zkgroups.kafka import BrokerOptions, Brokers, read_properties
from zkgroups.kafka.properties import for_librdkafka, parse, without_secrets

PASSWORD = "the-s3cret;\\ \"of' anna"
JAAS = "org.apache.kafka.common.security.{}LoginModule required {};"


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("", {}),
        ("a=1", {"a": "1"}),
        ("a = 1 ", {"a": "1 "}),
        ("a:1\nb : 2\nc 3\n", {"a": "1", "b": "2", "c": "3"}),
        ("a\nb=\n", {"a": "", "b": ""}),
        ("# a=1\n! b=2\n  # c=3\n\n   \nd=4", {"d": "4"}),
        ("a=1 # no comment", {"a": "1 # no comment"}),
        ("a=x=y:z", {"a": "x=y:z"}),
        ("a=one,\\\n    two,\\\n\tthree\nb=2", {"a": "one,two,three", "b": "2"}),
        ("a=one\\\n# two\nb=2", {"a": "one# two", "b": "2"}),
        ("a=end\\\\\nb=2", {"a": "end\\", "b": "2"}),
        ("a=end\\", {"a": "end"}),
        ("a\\ b\\=c\\:d=1", {"a b=c:d": "1"}),
        ('a=\\t\\n\\r\\f\\u00e9\\\\ \\x\\"', {"a": '\t\n\r\fé\\ x"'}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=1\na=2", {"a": "2"}),
        ("  a=1", {"a": "1"}),
        ("\ufeffa=1", {"a": "1"}),
        ("=1\na=2", {"a": "2"}),
    ],
)
def test_a_file_is_read_as_java_reads_it(text: str, settings: dict[str, str]) -> None:
    assert parse(text) == settings


def _jaas(module: str, options: str) -> dict[str, str]:
    return {"sasl.jaas.config": JAAS.format(module, options)}


@pytest.mark.parametrize(
    ("java", "librdkafka"),
    [
        ({"security.protocol": "SASL_SSL"}, {"security.protocol": "SASL_SSL"}),
        ({"sasl.mechanism": "SCRAM-SHA-512"}, {"sasl.mechanism": "SCRAM-SHA-512"}),
        ({"client.id": "night"}, {"client.id": "night"}),
        ({"request.timeout.ms": "5000"}, {"socket.timeout.ms": "5000"}),
        (
            _jaas("plain.Plain", 'username="anna" password="p;\\"\\\\w"'),
            {"sasl.username": "anna", "sasl.password": 'p;"\\w'},
        ),
        (
            _jaas("scram.Scram", "password='p w' username = anna tokenauth=\"true\""),
            {"sasl.username": "anna", "sasl.password": "p w"},
        ),
        (
            {"ssl.truststore.type": "PEM", "ssl.truststore.location": "/ca.pem", "ssl.truststore.password": "x"},
            {"ssl.ca.location": "/ca.pem"},
        ),
        (
            {"ssl.keystore.type": "pem", "ssl.keystore.location": "/me.pem", "ssl.key.password": "x"},
            {"ssl.certificate.location": "/me.pem", "ssl.key.location": "/me.pem", "ssl.key.password": "x"},
        ),
        (
            {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": "/me.p12", "ssl.keystore.password": "x"},
            {"ssl.keystore.location": "/me.p12", "ssl.keystore.password": "x"},
        ),
        (
            {"ssl.truststore.certificates": "A", "ssl.keystore.certificate.chain": "B", "ssl.keystore.key": "C"},
            {"ssl.ca.pem": "A", "ssl.certificate.pem": "B", "ssl.key.pem": "C"},
        ),
        ({"ssl.endpoint.identification.algorithm": ""}, {"ssl.endpoint.identification.algorithm": "none"}),
        ({"ssl.endpoint.identification.algorithm": "https"}, {"ssl.endpoint.identification.algorithm": "https"}),
        ({"key.deserializer": "x", "ssl.enabled.protocols": "TLSv1.3", "metrics.recording.level": "INFO"}, {}),
        (
            {"broker.address.ttl": "100", "sasl.username": "anna"},
            {"broker.address.ttl": "100", "sasl.username": "anna"},
        ),
    ],
)
def test_settings_are_converted(java: dict[str, str], librdkafka: dict[str, str]) -> None:
    assert for_librdkafka(java) == librdkafka


REFUSED = [
    ({"ssl.truststore.location": "/ca.jks"}, "stores of type JKS are not supported: export it as PEM"),
    (
        {"ssl.truststore.location": "/ca.p12", "ssl.truststore.type": "PKCS12", "ssl.truststore.password": PASSWORD},
        "set ssl.truststore.type=PEM",
    ),
    ({"ssl.keystore.location": "/me.jks", "ssl.keystore.password": PASSWORD}, "set ssl.keystore.type=PEM"),
    (_jaas("oauthbearer.OAuthBearer", f'clientSecret="{PASSWORD}"'), "sasl.oauthbearer.method=oidc"),
    ({"sasl.jaas.config": f"com.sun.security.auth.module.Krb5LoginModule required x='{PASSWORD}';"}, "keytab"),
    ({"sasl.jaas.config": f"com.example.OwnLoginModule required password={PASSWORD!r};"}, "only PlainLoginModule and"),
    ({"sasl.jaas.config": f"{PASSWORD}"}, "only PlainLoginModule and"),
    ({"sasl.jaas.config": ""}, "only PlainLoginModule and"),
    (_jaas("plain.Plain", f'password="{PASSWORD}"'), "needs a username and a password"),
    ({"security.protocol": "TELNET", "sasl.password": PASSWORD}, "TELNET"),
    ({"no.such.setting": "1", "sasl.password": PASSWORD}, "no.such.setting"),
    ({"ssl.ca.pem": PASSWORD, "security.protocol": "SSL"}, "ssl.ca.pem"),
    ({"ssl.key.pem": PASSWORD, "ssl.key.password": PASSWORD, "security.protocol": "SSL"}, "ssl.key.pem"),
    ({"socket.timeout.ms": "soon", "sasl.password": PASSWORD}, "socket.timeout.ms"),
]


@pytest.mark.parametrize(("java", "words"), REFUSED)
def test_a_setting_that_cannot_be_converted_is_refused_with_advice_and_without_secrets(
    java: dict[str, str], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        Brokers.connect("127.0.0.1:1", properties=java)

    assert words in str(caught.value)
    everything = [str(caught.value), repr(caught.value), repr(vars(caught.value)), repr(caught.value.__cause__)]
    assert not any("s3cret" in text for text in everything)
    assert b"s3cret" not in pickle.dumps(caught.value)
    assert capfd.readouterr() == ("", "")


def test_secrets_are_removed_from_messages_of_librdkafka() -> None:
    settings = {"sasl.password": "s3cret", "ssl.key.password": "", "client.id": "night"}

    assert without_secrets("night: s3cret is no password", settings) == "night: (not shown) is no password"


def test_the_repr_of_brokers_contains_no_secrets() -> None:
    with Brokers.connect("127.0.0.1:1", properties={"sasl.password": PASSWORD, "sasl.mechanism": "PLAIN"}) as brokers:
        assert repr(brokers) == "<Brokers 127.0.0.1:1>"


def test_a_given_address_overrides_the_address_in_the_file() -> None:
    with Brokers.connect("127.0.0.1:1", properties={"bootstrap.servers": "kafka1:9092"}) as brokers:
        assert brokers._open().config["bootstrap.servers"] == "127.0.0.1:1"


def test_a_file_is_read_as_utf_8_and_otherwise_as_latin_1(tmp_path: Path) -> None:
    for encoding in ("utf-8", "latin-1"):
        path = tmp_path / encoding
        path.write_bytes("sasl.password=größe".encode(encoding))
        assert read_properties(path) == {"sasl.password": "größe"}
        assert read_properties(str(path)) == {"sasl.password": "größe"}


def test_an_unreadable_properties_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match=r"none\.properties.*No such file"):
        read_properties(tmp_path / "none.properties")
    with pytest.raises(InvalidOptionError, match="Is a directory"):
        read_properties(tmp_path)


PLANTED = [
    {"sasl.pasword": "s3cret"},
    {"sasl.pasword": "s3", "no.such.setting": "x"},
    {"ssl.key.passwrod": "s3cret", "security.protocol": "SASL_SLS"},
    {"s3cret": ""},
    {"S3cret,\x01\x83": "s3cret"},
    {"sasl.jaas.confg": 'PlainLoginModule required username="anna" password="s3cret";'},
    {"stats_cb": "s3cret"},
    {"default.topic.config": "s3cret"},
    {"sasl.password": "s3cret\ud800"},
    {"sasl.password": "s3cret\0"},
    {"plugin.library.paths": "/no/s3cret/library"},
]


@pytest.mark.parametrize("properties", PLANTED)
def test_values_of_unknown_settings_are_never_shown(
    properties: dict[str, str], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)

    with pytest.raises(InvalidOptionError) as caught:
        Brokers.connect("127.0.0.1:1", properties={**properties, "debug": "all"})

    everything = "".join(traceback.format_exception(caught.value)) + repr(vars(caught.value)) + caplog.text
    assert "s3" not in everything.lower()
    assert b"s3" not in pickle.dumps(caught.value).lower()
    assert capfd.readouterr() == ("", "")


def test_the_error_for_another_file_format_shows_none_of_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "store.jks").write_bytes(b"\xfe\xeds3cret\xff s3cret\ns3cret\n\xe9s3cret=s3cret")

    with pytest.raises(InvalidOptionError) as caught:
        BrokerOptions("127.0.0.1:1", str(tmp_path / "store.jks")).connect()

    assert "s3cret" not in "".join(traceback.format_exception(caught.value)) + repr(vars(caught.value))


def test_errors_and_logs_of_librdkafka_contain_no_part_of_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    """librdkafka quotes settings that it does not understand."""
    caplog.set_level(logging.DEBUG)
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER", "debug": "all"}
    login |= {"enable.sasl.oauthbearer.unsecure.jwt": "true", "sasl.oauthbearer.config": "principal=anna s3cret=7"}

    with Brokers.connect("127.0.0.1:1", properties=login) as brokers, pytest.raises(AuthenticationError) as caught:
        brokers.partitions()

    assert "Unrecognized sasl.oauthbearer.config" in str(caught.value)
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))
    assert "OAUTHBEARER" in caplog.text
    assert "s3cret" not in caplog.text


def test_a_file_that_never_ends_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match=r"/dev/zero.* it cannot be read: it is longer than 65536 bytes"):
        read_properties("/dev/zero")


@pytest.mark.parametrize(
    "text",
    ["a" * 200_000, "a." * 100_000, "a " * 100_000, "a = " * 50_000, 'a="\\' * 50_000],
    ids=["letters", "names", "words", "signs", "quotes"],
)
def test_a_long_login_without_a_password_is_refused_at_once(text: str) -> None:
    """Quadratic time would be minutes here."""
    settings = _jaas("plain.Plain", text)
    with pytest.raises(InvalidOptionError, match="needs a username and a password"):
        for_librdkafka(settings)
