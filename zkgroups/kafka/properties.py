"""Read the properties file of a Kafka client as Java does, with the login and the certificates in it."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ..input_errors import InvalidOptionError
from ..secret_file import read_secret_file
from .wire.login import Kerberos, Login, OAuth, Plain, Scram
from .wire.security import Identity, from_pkcs12, load_identity, tls_context

# Read the properties file of a Kafka client as Java does. `client_settings.py` interprets them.
#
# Errors show only the values of a few known settings: any other value may be a password under a mistyped name.


HIDDEN: Final = "(not shown)"

_SHOWN: Final = frozenset(
    {
        "api.version.request",
        "bootstrap.servers",
        "broker.address.family",
        "broker.version.fallback",
        "client.id",
        "debug",
        "enable.ssl.certificate.verification",
        "log_level",
        "request.timeout.ms",
        "sasl.kerberos.keytab",
        "sasl.kerberos.principal",
        "sasl.kerberos.service.name",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.oauthbearer.method",
        "sasl.username",
        "security.protocol",
        "socket.connection.setup.timeout.ms",
        "socket.timeout.ms",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.location",
        "ssl.keystore.location",
        "ssl.keystore.type",
        "ssl.truststore.location",
        "ssl.truststore.type",
    }
)
"""Settings without secret values. The value of any other setting is never shown."""

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(?:[._][a-z0-9]+)+")
"""A name that looks like a setting. Any other name may be part of a secret, or of a file in another format."""

_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_KEY: Final = re.compile(r"((?:[^\\=:\s]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)


def read_properties(path: str | Path) -> dict[str, str]:
    """Read the settings in a properties file of a Java client, e.g. `security.protocol=SASL_SSL`, for `Brokers`."""
    try:
        data = read_secret_file(path)
    except OSError as error:
        raise InvalidOptionError("properties", str(path), f"it cannot be read: {error.strerror}") from error
    try:
        return parse(data.decode())
    except UnicodeDecodeError:
        return parse(data.decode("latin-1"))  # Java reads every properties file as Latin-1


def parse(text: str) -> dict[str, str]:
    r"""Parse the text of a properties file.

    >>> parse("# who we are\nclient.id = night\\\n    watch\nsasl.mechanism:PLAIN")
    {'client.id': 'nightwatch', 'sasl.mechanism': 'PLAIN'}
    """
    found = {}
    for line in _logical_lines(text.removeprefix("\ufeff")):
        match = _KEY.match(line)
        if match and match[1]:
            found[unescaped(match[1])] = unescaped(match[2])
    return found


def _logical_lines(text: str) -> Iterator[str]:
    """Yield the lines without comments, joined with their continuation lines."""
    begun = ""
    for natural in re.split("\r\n|\r|\n", text):
        line = natural.lstrip(" \t\f")
        if not begun and (not line or line[0] in "#!"):
            continue
        if _continues(line):
            begun += line[:-1]
            continue
        yield begun + line
        begun = ""
    if begun:
        yield begun


def _continues(line: str) -> bool:
    """Return whether a line ends with an odd number of backslashes: a pair of them is an escaped backslash."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def unescaped(text: str) -> str:
    """Resolve the escapes of Java's properties files, as in strings of Java."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)) if found[1] else _ESCAPES.get(found[2], found[2]), text)


def shown(key: str, value: str) -> str:
    """Return the value of a setting for a message, unless it may be secret."""
    return value if key in _SHOWN else HIDDEN


def shown_name(key: str) -> str:
    """Return the name of a setting for a message, unless it may be secret."""
    return key if _NAME.fullmatch(key) else f"a setting whose name is {HIDDEN}"


def refused(key: str, value: str, reason: str) -> InvalidOptionError:
    """Return the error for a setting, without values that may be secret."""
    found = shown(key, value)
    return InvalidOptionError(shown_name(key), ... if found == HIDDEN else found, reason)


# The login in `sasl.jaas.config`, as Kafka's Java clients read it.


JAAS_SETTING: Final = "sasl.jaas.config"
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
    text = properties.get(JAAS_SETTING, "")
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
    from .wire.login import ClientCredentials

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
    return refused(JAAS_SETTING, "", reason)


_LOGINS: Final[Mapping[str, Callable[[str, Mapping[str, str], Mapping[str, str]], Login]]] = {
    "PLAIN": _password,
    "SCRAM-SHA-256": _password,
    "SCRAM-SHA-512": _password,
    "OAUTHBEARER": _oauth,
    "GSSAPI": _kerberos,
}
MECHANISMS: Final = tuple(_LOGINS)


# Certificates and keys: the files and texts in a Kafka client's properties.


_LONGEST: Final = 4 << 20
"""In bytes. The certificates of all public authorities take a tenth of it."""
_DER: Final = b"\x30"
"""The first byte of a PKCS12 store. Java also accepts such a store if its type is set to JKS."""


def tls(properties: Mapping[str, str]) -> ssl.SSLContext:
    """Return a TLS context with the trusted authorities, and the certificate of this client."""
    with _read("ssl.truststore", "certificates", properties):
        context = tls_context(trusted(properties), check_host=checks_host(properties))
    with _read("ssl.keystore", "key", properties):
        if (own := identity(properties)) is not None:
            load_identity(context, own)
    return context


def checks_host(properties: Mapping[str, str]) -> bool:
    """Return whether the certificate of a broker must be for its host."""
    return properties.get("ssl.endpoint.identification.algorithm", "https").strip().lower() not in ("", "none")


def trusted(properties: Mapping[str, str]) -> str | None:
    """Return the trusted authorities as PEM; None for those of the system."""
    if (text := properties.get("ssl.truststore.certificates")) is not None:
        return text
    if (data := _file("ssl.truststore", properties)) is None:
        return None
    if _kind("ssl.truststore", data, properties) == "PEM":
        return data.decode()
    _, certificates = from_pkcs12(data, properties.get("ssl.truststore.password"))
    return certificates


def identity(properties: Mapping[str, str]) -> Identity | None:
    """Return the certificate of this client and its key; None without one."""
    password = properties.get("ssl.key.password")
    if (key := properties.get("ssl.keystore.key")) is not None:
        return Identity(properties.get("ssl.keystore.certificate.chain", ""), key, password)
    if (data := _file("ssl.keystore", properties)) is None:
        return None
    if _kind("ssl.keystore", data, properties) == "PEM":
        return Identity(data.decode(), "", password)
    found, _ = from_pkcs12(data, properties.get("ssl.keystore.password"))
    if found is None:
        raise ValueError("the store has no key")
    return found


def _file(store: str, properties: Mapping[str, str]) -> bytes | None:
    path = properties.get(f"{store}.location")
    if not path:
        return None
    try:
        with Path(path).open("rb") as file:
            return file.read(_LONGEST)
    except OSError as error:
        raise refused(f"{store}.location", path, f"it cannot be read: {error.strerror}") from error


def _kind(store: str, data: bytes, properties: Mapping[str, str]) -> str:
    kind = properties.get(f"{store}.type", "JKS").strip().upper()
    if kind in ("PEM", "PKCS12"):
        return kind
    if data.startswith(_DER):
        return "PKCS12"
    raise refused(
        f"{store}.location",
        properties[f"{store}.location"],
        f"it has the type {kind}, which is not supported: convert it with keytool -importkeystore -deststoretype "
        f"PKCS12, and set {store}.type=PKCS12",
    )


@contextmanager
def _read(store: str, text: str, properties: Mapping[str, str]) -> Iterator[None]:
    """Convert errors to errors that name the setting, without the message of the library, which may contain secrets."""
    try:
        yield
    except InvalidOptionError:
        raise
    except (ssl.SSLError, ValueError):
        name = f"{store}.{text}" if f"{store}.{text}" in properties else f"{store}.location"
        reason = "its certificates or its key cannot be read: check the contents, the type and the password"
        raise refused(name, properties.get(name, ""), reason) from None
