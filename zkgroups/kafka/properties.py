"""Read a Kafka client's properties as the Java client does, and translate them for librdkafka.

A property that cannot be translated is refused, with advice; only properties without effect here are dropped. Errors
and logs show only the values of a few known settings: any other value may be a password under a mistyped name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from ..input_errors import InvalidOptionError
from ..secret_file import read_secret_file

HIDDEN: Final = "(not shown)"

_SHOWN: Final = frozenset(
    {
        "api.version.request",
        "bootstrap.servers",
        "broker.address.family",
        "broker.version.fallback",
        "client.dns.lookup",
        "client.id",
        "debug",
        "enable.ssl.certificate.verification",
        "log_level",
        "reconnect.backoff.max.ms",
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
        "ssl.cipher.suites",
        "ssl.crl.location",
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

_PIECES: Final = re.compile(r"""[\s=;,"']+""")
_SHORT: Final = 4
"""A shorter secret is only replaced as a whole word, because many words may contain it by accident."""

_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_KEY: Final = re.compile(r"((?:[^\\=:\s]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_JAAS_OPTION: Final = re.compile(
    r"""(?<![\w.])([\w.]++)\s*+=\s*+(?:"((?:[^"\\]|\\.)*+)"|'((?:[^'\\]|\\.)*+)'|([^\s;"']++))"""
)
"""Possessive, so that matching a long text takes linear time."""
_PASSWORD_LOGINS: Final = ("PlainLoginModule", "ScramLoginModule")

# Settings of Java consumers and producers without effect here. librdkafka supports no TLS older than 1.2 anyway.
_WITHOUT_EFFECT: Final = re.compile(
    r"(key|value)\.(de)?serializer|interceptor\.classes|metric\..*|metrics\..*|auto\.include\.jmx\.reporter"
    r"|partition\.assignment\.strategy|max\.poll\.records|default\.api\.timeout\.ms|exclude\.internal\.topics"
    r"|ssl\.(protocol|enabled\.protocols|keymanager\.algorithm|trustmanager\.algorithm|secure\.random\.implementation)"
    r"|ssl\.(truststore|keystore)\.type"
)


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
            found[_unescaped(match[1])] = _unescaped(match[2])
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
    """An even number of backslashes at the end stands for backslashes."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)) if found[1] else _ESCAPES.get(found[2], found[2]), text)


def for_librdkafka(properties: Mapping[str, str]) -> dict[str, str]:
    """Translate settings to librdkafka's names. Settings of librdkafka are left unchanged.

    >>> for_librdkafka({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": ""})
    {'security.protocol': 'SSL', 'ssl.endpoint.identification.algorithm': 'none'}
    """
    found: dict[str, str] = {}
    for key, value in properties.items():
        translate = _TRANSLATIONS.get(key)
        if translate is not None:
            found |= translate(properties, value)
        elif not _WITHOUT_EFFECT.fullmatch(key):
            found[key] = value
    return found


def shown(key: str, value: str) -> str:
    """Return the value of a setting for a message, unless it may be secret."""
    return value if key in _SHOWN else HIDDEN


def shown_name(key: str) -> str:
    """Return the name of a setting for a message, unless it may be secret."""
    return key if _NAME.fullmatch(key) else f"a setting whose name is {HIDDEN}"


def without_secrets(text: str, properties: Mapping[str, str]) -> str:
    """Remove secret values, their parts, and names that may be secret from a message of librdkafka.

    >>> without_secrets("begins at: s3cret", {"sasl.oauthbearer.config": "principal=anna s3cret=7"})
    'begins at: (not shown)'
    """
    secrets = {key for key in properties if not _NAME.fullmatch(key)}
    for key, value in properties.items():
        if key not in _SHOWN:
            secrets |= {value, *(piece for piece in _PIECES.split(value) if len(piece) >= _SHORT)}
    # The longest first, because it may contain a shorter one.
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = re.sub(_in_text(secret), HIDDEN, text)
    return text


def _in_text(secret: str) -> str:
    found = re.escape(secret)
    return found if len(secret) >= _SHORT else rf"(?<!\w){found}(?!\w)"


def check_sendable(properties: Mapping[str, str]) -> None:
    """Raise an error for text that cannot be passed to librdkafka, which is written in C."""
    for key, value in properties.items():
        if "\0" in key + value or any("\ud800" <= letter <= "\udfff" for letter in key + value):
            raise _refused(key, value, "it contains characters that cannot be passed to librdkafka")


def _jaas(_: Mapping[str, str], value: str) -> dict[str, str]:
    module = value.split(maxsplit=1)[0].rpartition(".")[2] if value.split() else ""
    if module not in _PASSWORD_LOGINS:
        raise _refused("sasl.jaas.config", value, _other_login(module))
    options = {name: _unquoted(quotes) for name, *quotes in _JAAS_OPTION.findall(value)}
    if not {"username", "password"} <= options.keys():
        raise _refused("sasl.jaas.config", value, f"{module} needs a username and a password")
    return {"sasl.username": options["username"], "sasl.password": options["password"]}


def _other_login(module: str) -> str:
    if module == "Krb5LoginModule":
        return (
            "for a Kerberos login, set sasl.kerberos.service.name, sasl.kerberos.principal and "
            "sasl.kerberos.keytab, and needs a confluent-kafka that was built with it"
        )
    if module == "OAuthBearerLoginModule":
        return "for an OAuth login, set sasl.oauthbearer.method=oidc and the other sasl.oauthbearer settings"
    return f"only {' and '.join(_PASSWORD_LOGINS)} are supported"


def _unquoted(quotes: list[str]) -> str:
    double, single, bare = quotes
    return bare or _unescaped(double or single)


def _trust_store(properties: Mapping[str, str], value: str) -> dict[str, str]:
    _check_pem("ssl.truststore", properties, value)
    return {"ssl.ca.location": value}


def _key_store(properties: Mapping[str, str], value: str) -> dict[str, str]:
    if _kind("ssl.keystore", properties) == "PKCS12":
        return {"ssl.keystore.location": value}
    _check_pem("ssl.keystore", properties, value)
    return {"ssl.certificate.location": value, "ssl.key.location": value}


def _key_store_password(properties: Mapping[str, str], value: str) -> dict[str, str]:
    """A PEM file has no password; the key in it has its own setting."""
    return {"ssl.keystore.password": value} if _kind("ssl.keystore", properties) == "PKCS12" else {}


def _check_pem(store: str, properties: Mapping[str, str], value: str) -> None:
    if (kind := _kind(store, properties)) != "PEM":
        raise _refused(
            f"{store}.location",
            value,
            f"stores of type {kind} are not supported: export it as PEM "
            f"(keytool -importkeystore -deststoretype PKCS12, then openssl pkcs12 -in), and set {store}.type=PEM",
        )


def _kind(store: str, properties: Mapping[str, str]) -> str:
    return properties.get(f"{store}.type", "JKS").strip().upper()


def _host_name_check(_: Mapping[str, str], value: str) -> dict[str, str]:
    return {"ssl.endpoint.identification.algorithm": value.strip() or "none"}


def _under(name: str) -> Callable[[Mapping[str, str], str], dict[str, str]]:
    return lambda _, value: {name: value}


def _refused(key: str, value: str, reason: str) -> InvalidOptionError:
    return InvalidOptionError(shown_name(key), shown(key, value), reason)


_TRANSLATIONS: Final[Mapping[str, Callable[[Mapping[str, str], str], dict[str, str]]]] = {
    "sasl.jaas.config": _jaas,
    "ssl.truststore.location": _trust_store,
    "ssl.truststore.password": lambda *_: {},
    "ssl.truststore.certificates": _under("ssl.ca.pem"),
    "ssl.keystore.location": _key_store,
    "ssl.keystore.password": _key_store_password,
    "ssl.keystore.certificate.chain": _under("ssl.certificate.pem"),
    "ssl.keystore.key": _under("ssl.key.pem"),
    "ssl.endpoint.identification.algorithm": _host_name_check,
    "request.timeout.ms": _under("socket.timeout.ms"),
}
