"""TLS and logins at a gateway, and permissions for its groups, which the broker decides."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.waiting import LONGEST, eventually
from zkgroups.kafka.client_settings import client_settings
from zkgroups.kafka.wire import codec
from zkgroups.kafka.wire.security import Security, tls_context
from zkgroups.testing import KafkaBroker

from . import peers
from .peers import member, settled
from .running import RunningGateway, running
from .test_wire import join

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("gateway"), pytest.mark.timeout(1000)]

USERS = {"anna": "a secret", "ben": "b secret", "cleo": "c secret"}
LOGINS = "org.apache.kafka.common.security"
TOPIC = "orders"
GROUP = "here"


def login(user: str, password: str | None = None) -> dict[str, str]:
    found = {"sasl.username": user, "sasl.password": password or USERS[user]}
    return {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", **found}


def own_login() -> Security:
    jaas = f"{LOGINS}.plain.PlainLoginModule required"
    properties = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{jaas} username="anna" password="{USERS["anna"]}";',
    }
    return client_settings(properties).security


def allow(admin: AdminClient, user: str, type: ResourceType, name: str, operation: AclOperation) -> None:
    """Grant a permission for one resource."""
    binding = AclBinding(
        type, name, ResourcePatternType.LITERAL, f"User:{user}", "*", operation, AclPermissionType.ALLOW
    )
    for future in admin.create_acls([binding]).values():
        future.result(LONGEST)


@pytest.fixture(scope="module")
def guarded() -> Iterator[RunningGateway]:
    """A gateway in front of a broker where anna may do everything, ben nothing, and cleo only read."""
    access = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:anna",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,OAUTHBEARER",
        "listener.name.sasl.scram-sha-256.sasl.jaas.config": f"{LOGINS}.scram.ScramLoginModule required;",
        "listener.name.sasl.oauthbearer.sasl.jaas.config": (
            f'{LOGINS}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
        ),
    }
    with KafkaBroker(users=USERS, config=access) as broker:
        broker.create_topic(TOPIC)
        with peers.administrator(broker.address) as admin:
            for user in ("ben", "cleo"):
                allow(admin, user, ResourceType.TOPIC, TOPIC, AclOperation.READ)
            allow(admin, "cleo", ResourceType.GROUP, GROUP, AclOperation.READ)
            scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
            user = UserScramCredentialUpsertion("anna", scram, USERS["anna"].encode())
            for future in admin.alter_user_scram_credentials([user]).values():
                future.result(LONGEST)
        with running(broker.sasl_address, security=own_login()) as gateway:
            yield gateway


def administrator(gateway: RunningGateway, user: str) -> AdminClient:
    return peers.administrator(gateway.bootstrap, **login(user))


def refusal(error: KafkaException) -> int:
    found: int = error.args[0].code()
    return found


def test_a_client_with_permission_joins_and_one_without_is_refused(guarded: RunningGateway) -> None:
    with member(guarded.bootstrap, GROUP, TOPIC, **login("cleo")) as cleo:
        assert settled(cleo, shares={1})
        with member(guarded.bootstrap, GROUP, TOPIC, **login("ben")) as ben:
            assert eventually(lambda: ben.poll() or ben.errors)
            assert {each.code() for each in ben.errors} == {KafkaError.GROUP_AUTHORIZATION_FAILED}
        assert cleo.partitions == {0}


def test_a_client_sees_only_the_groups_that_it_may_describe(guarded: RunningGateway) -> None:
    with member(guarded.bootstrap, GROUP, TOPIC, **login("anna")) as anna:
        assert settled(anna, shares={1})
        for user, seen in (("anna", [GROUP]), ("cleo", [GROUP]), ("ben", [])):
            with administrator(guarded, user) as admin:
                assert [each.group_id for each in admin.list_consumer_groups().result(LONGEST).valid] == seen
                described = admin.describe_consumer_groups([GROUP])[GROUP]
                if seen:
                    assert described.result(LONGEST).state is ConsumerGroupState.STABLE
                else:
                    with pytest.raises(KafkaException) as refused:
                        described.result(LONGEST)
                    assert refusal(refused.value) == KafkaError.GROUP_AUTHORIZATION_FAILED


def test_a_client_that_may_only_read_cannot_delete(guarded: RunningGateway) -> None:
    for user, error in (("cleo", KafkaError.GROUP_AUTHORIZATION_FAILED), ("anna", KafkaError.GROUP_ID_NOT_FOUND)):
        with administrator(guarded, user) as admin, pytest.raises(KafkaException) as refused:
            admin.delete_consumer_groups(["missing"])["missing"].result(LONGEST)
        assert refusal(refused.value) == error


def test_a_client_that_has_not_logged_in_is_disconnected_before_its_request_counts(guarded: RunningGateway) -> None:
    with guarded.connect() as client:
        client.send(codec.JoinGroupRequest(**join("intruders")), 2)
        assert client.ended
    with administrator(guarded, "anna") as admin:
        groups = admin.list_consumer_groups().result(LONGEST).valid
    assert "intruders" not in [each.group_id for each in groups]


def test_a_wrong_password_is_refused_by_the_broker(guarded: RunningGateway) -> None:
    errors: list[KafkaError] = []
    with member(guarded.bootstrap, GROUP, TOPIC, error_cb=errors.append, **login("anna", "wrong")) as found:
        assert eventually(lambda: found.poll() or errors)
    assert KafkaError._AUTHENTICATION in {each.code() for each in errors}


OTHER_LOGINS = {
    "SCRAM-SHA-256": login("anna"),
    "OAUTHBEARER": {"enable.sasl.oauthbearer.unsecure.jwt": True, "sasl.oauthbearer.config": "principal=anna"},
}


@pytest.mark.parametrize("mechanism", OTHER_LOGINS)
def test_other_logins_pass_through(guarded: RunningGateway, mechanism: str) -> None:
    settings = {"security.protocol": "SASL_PLAINTEXT", **OTHER_LOGINS[mechanism], "sasl.mechanism": mechanism}
    with member(guarded.bootstrap, GROUP, TOPIC, **settings) as found:
        assert settled(found, shares={1})


# TLS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def encrypted(kafka_broker: KafkaBroker, authority: trustme.CA) -> Iterator[RunningGateway]:
    """A gateway that asks clients for certificates, and connects with TLS to another gateway."""
    issued = authority.issue_cert("127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    issued.configure_cert(context)
    outer = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    issued.configure_cert(outer)
    authority.configure_trust(outer)
    outer.verify_mode = ssl.CERT_REQUIRED
    trusted = Security(tls_context(authority.cert_pem.bytes().decode()))
    kafka_broker.create_topic("gateway-tls")
    with (
        running(kafka_broker.address, tls=context, pattern="nothing") as inner,
        running(inner.bootstrap, tls=outer, security=trusted) as gateway,
    ):
        yield gateway


def files(authority: trustme.CA, folder: Path) -> dict[str, Any]:
    """The settings of librdkafka for a client with a certificate."""
    issued = authority.issue_cert("client@example.com")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    issued.private_key_and_cert_chain_pem.write_to_path(str(folder / "client.pem"))
    return {
        "security.protocol": "SSL",
        "ssl.ca.location": str(folder / "ca.pem"),
        "ssl.certificate.location": str(folder / "client.pem"),
        "ssl.key.location": str(folder / "client.pem"),
    }


def test_tls_ends_at_the_gateway_and_begins_anew_to_the_brokers(
    encrypted: RunningGateway, authority: trustme.CA, tmp_path: Path
) -> None:
    with member(encrypted.bootstrap, "encrypted", "gateway-tls", **files(authority, tmp_path)) as found:
        assert settled(found, shares={1})


@pytest.mark.parametrize("settings", [{}, {"security.protocol": "SSL", "ssl.ca.location": "ca.pem"}])
def test_a_client_without_tls_or_without_a_certificate_gets_nothing(
    encrypted: RunningGateway, authority: trustme.CA, tmp_path: Path, settings: dict[str, str]
) -> None:
    files(authority, tmp_path)
    settings = {name: str(tmp_path / value) if value.endswith("pem") else value for name, value in settings.items()}
    with peers.administrator(encrypted.bootstrap, **settings) as admin, pytest.raises(KafkaException):
        admin.list_topics(timeout=1)
