"""A broker with every kind of TLS and login that clients use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trustme
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives import serialization

from zkgroups.kafka.client_settings import client_settings
from zkgroups.kafka.wire.cluster import Cluster
from zkgroups.testing import KafkaBroker

PASSWORD = 'the s3cret; =,\\ of "größe"'
LONGEST = 240.0
"""In seconds. A broker that is restarted on a busy machine needs a minute."""
SESSION_MS = 4000
"""How long a login with SCRAM-SHA-256 lasts at the broker."""

_LISTENERS = {"TLS": "SSL", "MUTUAL": "SSL", "LOGIN": "SASL_PLAINTEXT", "BOTH": "SASL_SSL"}

T = TypeVar("T")


class Certificates:
    """An authority, and the certificates that it issued."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.trusted = self.authority.cert_pem.bytes().decode()
        self.broker = self.authority.issue_cert("127.0.0.1")
        self.elsewhere = self.authority.issue_cert("elsewhere.example")
        self.client = self.authority.issue_cert("anna@example.com")
        self.file = folder / "ca.pem"
        self.file.write_text(self.trusted)


def key_of(issued: trustme.LeafCert) -> str:
    """The key in the format that Java reads."""
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return key.private_bytes(*form).decode()


def chain_of(issued: trustme.LeafCert) -> str:
    return "".join(each.bytes().decode() for each in issued.cert_chain_pems)


class SecureBroker(KafkaBroker):
    """TLS without and with client certificates, and logins by every mechanism without and with TLS."""

    def __init__(self, certificates: Certificates) -> None:
        super().__init__(users={"anna": PASSWORD})
        self._certificates = certificates
        self._listeners += tuple(_LISTENERS)

    def at(self, listener: str) -> str:
        return self._address(listener)

    def _protection(self) -> dict[str, str]:
        logins = "org.apache.kafka.common.security"
        settings: dict[str, str] = {}
        for name in ("login", "both"):
            prefix = f"listener.name.{name}"
            quoted = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
            settings |= {
                f"{prefix}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
                f"{prefix}.plain.sasl.jaas.config": f'{logins}.plain.PlainLoginModule required user_anna="{quoted}";',
                f"{prefix}.scram-sha-256.sasl.jaas.config": f"{logins}.scram.ScramLoginModule required;",
                f"{prefix}.scram-sha-512.sasl.jaas.config": f"{logins}.scram.ScramLoginModule required;",
                f"{prefix}.oauthbearer.sasl.jaas.config": (
                    f'{logins}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
                ),
                f"{prefix}.scram-sha-256.connections.max.reauth.ms": str(SESSION_MS),
            }
        for name in ("tls", "mutual", "both"):
            prefix = f"listener.name.{name}.ssl"
            settings |= {
                f"{prefix}.keystore.type": "PEM",
                f"{prefix}.keystore.certificate.chain": _line(chain_of(self._certificates.broker)),
                f"{prefix}.keystore.key": _line(key_of(self._certificates.broker)),
                f"{prefix}.truststore.type": "PEM",
                f"{prefix}.truststore.certificates": _line(self._certificates.trusted),
                f"{prefix}.client.auth": "required" if name == "mutual" else "none",
            }
        return settings

    def _overrides(self) -> dict[str, str]:
        protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", "SASL": "SASL_PLAINTEXT"} | _LISTENERS
        addresses = {name: f"{name}://{self.at(name)}" for name in protocols}
        return self._protection() | {
            "listeners": ",".join(addresses.values()),
            "advertised.listeners": ",".join(at for name, at in addresses.items() if name != "CONTROLLER"),
            "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
        }


def _line(pem: str) -> str:
    return pem.replace("\n", " ")


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def secure(certificates: Certificates) -> Iterator[SecureBroker]:
    """A broker for all tests of TLS and logins."""
    with SecureBroker(certificates) as broker:
        with AdminClient({"bootstrap.servers": broker.address, "log_level": 0}) as admin:
            for kind in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
                user = UserScramCredentialUpsertion("anna=,", ScramCredentialInfo(kind, 4096), PASSWORD.encode())
                for future in admin.alter_user_scram_credentials([user]).values():
                    future.result()
        yield broker


def run(use: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that must end."""

    async def main() -> T:
        async with asyncio.timeout(LONGEST):
            try:
                return await use
            finally:
                await asyncio.sleep(0.01)  # for the event loop to close sockets

    return asyncio.run(main())


def with_cluster(
    bootstrap: str,
    use: Callable[[Cluster], Coroutine[Any, Any, T]],
    properties: Mapping[str, str] | None = None,
    **options: Any,
) -> T:
    """Run a coroutine with a cluster that is closed afterwards."""

    async def main() -> T:
        security = client_settings(properties or {}).security
        async with Cluster(bootstrap, security, **options) as cluster:
            return await use(cluster)

    return run(main())
