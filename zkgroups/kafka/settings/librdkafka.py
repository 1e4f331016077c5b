"""Translate the properties of Kafka's Java clients into settings of librdkafka, for connections and logins.

Certificates and keys are passed as text, so that all stores work that other commands read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ..wire.oidc import ClientCredentials
from ..wire.sasl import Kerberos, Login, OAuth, Plain, Scram
from . import jaas
from .client_settings import client_settings
from .properties import refused
from .tls_stores import checks_host, identity, trusted


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
        raise refused(jaas.SETTING, "", "it must have a clientId and a clientSecret for OAuth")
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
