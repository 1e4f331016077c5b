"""The login in `sasl.jaas.config`, as Kafka's Java clients read it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from ...input_errors import InvalidOptionError
from ..wire.sasl import Kerberos, Login, OAuth, Plain, Scram
from .properties import refused, unescaped

SETTING: Final = "sasl.jaas.config"
_OPTION: Final = re.compile(
    r"""(?<![\w.])([\w.]++)\s*+=\s*+(?:"((?:[^"\\]|\\.)*+)"|'((?:[^'\\]|\\.)*+)'|([^\s;"']++))"""
)
"""Possessive, so that matching a long text takes linear time."""

_PASSWORDS: Final = frozenset({"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"})
_MODULES: Final = {
    "PlainLoginModule": _PASSWORDS,
    "ScramLoginModule": _PASSWORDS,
    "OAuthBearerLoginModule": frozenset({"OAUTHBEARER"}),
    "Krb5LoginModule": frozenset({"GSSAPI"}),
}
"""The mechanisms that each login module of Java is for."""
_EXTENSION: Final = "extension_"


def login(mechanism: str, properties: Mapping[str, str]) -> Login:
    """Return the login for a mechanism."""
    text = properties.get(SETTING, "")
    module = text.split(maxsplit=1)[0].rpartition(".")[2] if text.split() else ""
    if module not in _MODULES and (text or mechanism in _PASSWORDS):
        raise _refused(f"it must begin with one of the login modules {', '.join(_MODULES)}")
    if module and mechanism not in _MODULES[module]:
        raise refused(
            "sasl.mechanism", mechanism, f"{module} is for {', '.join(sorted(_MODULES[module]))}: set one of these"
        )
    options = {name: _unquoted(*quotes) for name, *quotes in _OPTION.findall(text)}
    return _LOGINS[mechanism](mechanism, options, properties)


def _password(mechanism: str, options: Mapping[str, str], _: Mapping[str, str]) -> Login:
    if not {"username", "password"} <= options.keys():
        raise _refused("it must have a username and a password")
    user, password = options["username"], options["password"]
    return Plain(user, password) if mechanism == "PLAIN" else Scram(user, password, mechanism)


def _oauth(_: str, options: Mapping[str, str], properties: Mapping[str, str]) -> Login:
    from ..wire.oidc import ClientCredentials

    prefix = "sasl.oauthbearer.client.credentials.client"
    url = properties.get("sasl.oauthbearer.token.endpoint.url", "")
    client = properties.get(f"{prefix}.id") or options.get("clientId")
    secret = properties.get(f"{prefix}.secret") or options.get("clientSecret")
    scope = properties.get("sasl.oauthbearer.scope") or options.get("scope")
    if not url.startswith(("https://", "http://")):
        raise refused("sasl.oauthbearer.token.endpoint.url", url, "it must be an https:// address for OAuth")
    if not client or not secret:
        raise _refused("it must have a clientId and a clientSecret for OAuth")
    extensions = {name.removeprefix(_EXTENSION): each for name, each in options.items() if name.startswith(_EXTENSION)}
    return OAuth(ClientCredentials(url, client, secret, scope), extensions)


def _kerberos(_: str, options: Mapping[str, str], properties: Mapping[str, str]) -> Login:
    service = properties.get("sasl.kerberos.service.name") or options.get("serviceName")
    if not service:
        raise refused(
            "sasl.kerberos.service.name", "", "it must be the service name of the brokers for Kerberos, often kafka"
        )
    keytab = options.get("keyTab") if options.get("useKeyTab", "false").lower() == "true" else None
    return Kerberos(service, options.get("principal"), None if keytab is None else keytab.removeprefix("file:"))


def _unquoted(double: str, single: str, bare: str) -> str:
    return bare or unescaped(double or single)


def _refused(reason: str) -> InvalidOptionError:
    return refused(SETTING, "", reason)


_LOGINS: Final[Mapping[str, Callable[[str, Mapping[str, str], Mapping[str, str]], Login]]] = {
    "PLAIN": _password,
    "SCRAM-SHA-256": _password,
    "SCRAM-SHA-512": _password,
    "OAUTHBEARER": _oauth,
    "GSSAPI": _kerberos,
}
MECHANISMS: Final = tuple(_LOGINS)
