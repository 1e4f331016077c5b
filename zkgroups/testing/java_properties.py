"""How values are written into Java's properties files and JAAS files."""

from __future__ import annotations

from collections.abc import Mapping


def properties(lines: Mapping[str, str]) -> str:
    """Return the text of a properties file: backslashes, and characters outside of ASCII, are escaped."""
    return "".join(f"{key}={_escape(value)}\n" for key, value in lines.items())


def quoted(password: str) -> str:
    """Return a password as a JAAS file has it.

    >>> print(quoted('a"b'))
    "a\\"b"
    """
    return '"' + password.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _escape(value: str) -> str:
    letters = (rf"\u{ord(letter):04x}" if ord(letter) > 126 else letter for letter in value.replace("\\", "\\\\"))
    return "".join(letters)
