"""Read the properties file of a Kafka client as Java does. `client_settings.py` interprets them.

Errors show only the values of a few known settings: any other value may be a password under a mistyped name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ...input_errors import InvalidOptionError
from ...secret_file import read_secret_file

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
