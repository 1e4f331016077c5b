"""What the properties of Kafka's Java clients mean for our clients."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from .properties import JAAS_SETTING, MECHANISMS, checks_host, identity, login, refused, tls, trusted
from .wire.login import ClientCredentials, Kerberos, Login, OAuth, Plain, Scram
from .wire.security import Security

# Translate the properties of Kafka's Java clients into settings of connections.
#
# Settings of consumers and producers have no effect here. Any other unknown setting is refused, because it may be
# about security. Settings of librdkafka are refused with the name that Java has for them.


_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_REMOVE: Final = "remove it: it is not needed"
_LOGIN: Final = "set sasl.jaas.config instead"
_TRUST: Final = "set ssl.truststore.location and ssl.truststore.type=PEM instead"
_KEY: Final = "set ssl.keystore.location, a file with the certificate and the key, and ssl.keystore.type=PEM instead"
_OF_LIBRDKAFKA: Final = {
    "api.version.request": _REMOVE,
    "broker.address.family": _REMOVE,
    "broker.version.fallback": _REMOVE,
    "debug": _REMOVE,
    "log_level": _REMOVE,
    "enable.sasl.oauthbearer.unsecure.jwt": _REMOVE,
    "enable.ssl.certificate.verification": _TRUST,
    "metadata.broker.list": "set bootstrap.servers instead",
    "sasl.kerberos.keytab": _LOGIN,
    "sasl.kerberos.principal": _LOGIN,
    "sasl.mechanisms": "set sasl.mechanism instead",
    "sasl.oauthbearer.client.id": "set sasl.oauthbearer.client.credentials.client.id instead",
    "sasl.oauthbearer.client.secret": "set sasl.oauthbearer.client.credentials.client.secret instead",
    "sasl.oauthbearer.config": _LOGIN,
    "sasl.oauthbearer.extensions": _LOGIN,
    "sasl.oauthbearer.method": "set sasl.oauthbearer.token.endpoint.url instead",
    "sasl.password": _LOGIN,
    "sasl.username": _LOGIN,
    "socket.timeout.ms": "set request.timeout.ms instead",
    "ssl.ca.location": _TRUST,
    "ssl.ca.pem": "set ssl.truststore.certificates instead",
    "ssl.certificate.location": _KEY,
    "ssl.certificate.pem": "set ssl.keystore.certificate.chain instead",
    "ssl.key.location": _KEY,
    "ssl.key.pem": "set ssl.keystore.key instead",
}
"""Settings of librdkafka, and what to do in the properties of a Java client."""

_USED: Final = frozenset(
    {
        JAAS_SETTING,
        "client.id",
        "request.timeout.ms",
        "sasl.kerberos.service.name",
        "sasl.mechanism",
        "sasl.oauthbearer.client.credentials.client.id",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.scope",
        "sasl.oauthbearer.token.endpoint.url",
        "security.protocol",
        "socket.connection.setup.timeout.ms",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
    }
)

# Settings of Java's consumers, producers and admin clients that do not affect the requests of zkgroups. TLS before
# 1.2 is not supported anyway.
_WITHOUT_EFFECT: Final = re.compile(
    r"bootstrap\.servers|(key|value)\.(de)?serializer|interceptor\.classes|metrics?\..*|auto\.include\.jmx\.reporter"
    r"|enable\.metrics\.push|(metadata|fetch|compression|partitioner|heartbeat|session|reconnect|retry|transaction)\..*"
    r"|(group|auto|enable\.auto)\.(?!create\.topics\.enable).*|partition\.assignment\.strategy|isolation\.level"
    r"|max\.(poll|partition|request|in\.flight|block)\..*|default\.api\.timeout\.ms|exclude\.internal\.topics"
    r"|allow\.auto\.create\.topics|check\.crcs|client\.(dns\.lookup|rack)|connections\.max\.idle\.ms"
    r"|(receive|send)\.buffer\.bytes|socket\.connection\.setup\.timeout\.max\.ms|security\.providers"
    r"|acks|retries|batch\.size|buffer\.memory|delivery\.timeout\.ms|linger\.ms|enable\.idempotence|transactional\.id"
    r"|share\..*"
    r"|ssl\.(protocol|enabled\.protocols|provider|keymanager\.algorithm|trustmanager\.algorithm)"
    r"|ssl\.secure\.random\.implementation"
    r"|sasl\.kerberos\.(kinit\.cmd|min\.time\.before\.relogin|ticket\..*)"
    r"|sasl\.login\.(refresh|retry)\..*|sasl\.login\.(connect|read)\.timeout\.ms"
    r"|sasl\.oauthbearer\.(clock\.skew|expected|jwks|header|sub\.claim|scope\.claim)\..*"
)
_MILLISECONDS: Final = re.compile("[1-9][0-9]{0,9}")
_LOGIN_HANDLER: Final = "sasl.login.callback.handler.class"
_LOGIN_HANDLERS: Final = ("OAuthBearerLoginCallbackHandler",)


@dataclass(frozen=True)
class ClientSettings:
    """How to connect to brokers. Times are in seconds."""

    security: Security
    client_id: str
    connect_timeout: float
    request_timeout: float


def client_settings(properties: Mapping[str, str]) -> ClientSettings:
    """Translate properties, and read the files that they name. Raise InvalidOptionError for unusable settings."""
    for key, value in properties.items():
        _check(key, value)
    protocol = properties.get("security.protocol", "PLAINTEXT").strip().upper()
    if protocol not in _PROTOCOLS:
        raise refused("security.protocol", protocol, f"it must be one of {', '.join(_PROTOCOLS)}")
    mechanism = properties.get("sasl.mechanism", "GSSAPI").strip().upper()
    if mechanism not in MECHANISMS:
        raise refused("sasl.mechanism", mechanism, f"it must be one of {', '.join(MECHANISMS)}")
    return ClientSettings(
        Security(
            tls(properties) if protocol.endswith("SSL") else None,
            login(mechanism, properties) if protocol.startswith("SASL") else None,
        ),
        properties.get("client.id") or "zkgroups",
        _seconds("socket.connection.setup.timeout.ms", properties, 10.0),
        _seconds("request.timeout.ms", properties, 30.0),
    )


def _check(key: str, value: str) -> None:
    """Raise an error for a setting that cannot be used."""
    if key in _OF_LIBRDKAFKA:
        raise refused(key, value, f"it is a setting of librdkafka: {_OF_LIBRDKAFKA[key]}")
    if key == _LOGIN_HANDLER and value.strip().endswith(_LOGIN_HANDLERS):
        return
    if key not in _USED and not _WITHOUT_EFFECT.fullmatch(key):
        raise refused(key, value, "zkgroups supports no such setting of Java clients: check its name, or remove it")
    if any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in value):
        raise refused(key, value, "it contains characters that cannot be sent")


def _seconds(key: str, properties: Mapping[str, str], default: float) -> float:
    text = properties.get(key)
    if text is None:
        return default
    if not _MILLISECONDS.fullmatch(text.strip()):
        raise refused(key, text, "it must be a whole number of milliseconds, 1 or more")
    return int(text) / 1000


# Translate the properties of Kafka's Java clients into settings of librdkafka, for connections and logins.
#
# Certificates and keys are passed as text, so that all stores work that other commands read.


def librdkafka_settings(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that connect and log in as a Java client with these properties does.

    >>> librdkafka_settings({"client.id": "night"})
    {'client.id': 'night', 'security.protocol': 'PLAINTEXT'}
    """
    found = client_settings(properties)  # refuses what cannot be used
    protocol = properties.get("security.protocol", "PLAINTEXT").strip().upper()
    settings = {"client.id": found.client_id, "security.protocol": protocol}
    if found.security.tls is not None:
        settings |= _tls(properties)
    if found.security.login is not None:
        settings |= {"sasl.mechanism": found.security.login.mechanism} | _login(found.security.login)
    return settings


def _tls(properties: Mapping[str, str]) -> dict[str, str]:
    settings = {"ssl.endpoint.identification.algorithm": "https" if checks_host(properties) else "none"}
    if (authorities := trusted(properties)) is not None:
        settings["ssl.ca.pem"] = authorities
    if (own := identity(properties)) is not None:
        settings |= {"ssl.certificate.pem": own.certificates, "ssl.key.pem": own.key or own.certificates}
        if own.password is not None:
            settings["ssl.key.password"] = own.password
    return settings


def _login(login: Login) -> dict[str, str]:
    return _LOGINS[type(login)](login)


def _password(login: Plain | Scram) -> dict[str, str]:
    return {"sasl.username": login.user, "sasl.password": login.password}


def _kerberos(login: Kerberos) -> dict[str, str]:
    settings = {"sasl.kerberos.service.name": login.service}
    if login.principal is not None:
        settings["sasl.kerberos.principal"] = login.principal
    if login.keytab is not None:
        settings["sasl.kerberos.keytab"] = login.keytab
    return settings


def _oauth(login: OAuth) -> dict[str, str]:
    token = login.token
    if not isinstance(token, ClientCredentials):
        raise refused(JAAS_SETTING, "", "it must have a clientId and a clientSecret for OAuth")
    settings = {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": token.url,
        "sasl.oauthbearer.client.id": token.client,
        "sasl.oauthbearer.client.secret": token.secret,
    }
    if token.scope is not None:
        settings["sasl.oauthbearer.scope"] = token.scope
    if login.extensions:
        pairs = (f"{name}={value}" for name, value in login.extensions.items())
        settings["sasl.oauthbearer.extensions"] = ",".join(pairs)
    return settings


_LOGINS: Final[Mapping[type, Callable[[Any], dict[str, str]]]] = {
    Plain: _password,
    Scram: _password,
    Kerberos: _kerberos,
    OAuth: _oauth,
}
