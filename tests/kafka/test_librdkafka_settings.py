"""The properties of a Java client as settings of librdkafka, in which confluent-kafka connects and logs in."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme
from confluent_kafka import Consumer

from zkgroups.input_errors import InvalidOptionError
from zkgroups.kafka import read_properties
from zkgroups.kafka.settings.librdkafka import librdkafka_settings
from zkgroups.testing import KafkaBroker

from .test_logins import properties_of

JAAS = "org.apache.kafka.common.security.{}LoginModule required {};"
SASL = {"security.protocol": "SASL_PLAINTEXT", "client.id": "night"}
BOTH = {"client.id": "night", "security.protocol": "SASL_PLAINTEXT"}
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
    assert librdkafka_settings(SASL | properties) == BOTH | settings


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


def test_a_setting_that_cannot_be_used_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="it is a setting of librdkafka"):
        librdkafka_settings({"sasl.username": "anna"})


def test_a_broker_with_passwords_accepts_the_login(own: KafkaBroker, tmp_path: Path) -> None:
    settings = librdkafka_settings(read_properties(properties_of(tmp_path, "anna")))
    client = Consumer(settings | {"bootstrap.servers": own.sasl_address, "group.id": "any", "log_level": "0"})
    assert "orders" in client.list_topics(timeout=60).topics
    client.close()
