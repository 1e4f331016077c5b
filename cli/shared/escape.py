"""Escape untrusted text for a terminal.

Names and data in ZooKeeper may be hostile. An escape sequence could move the cursor or hide a line, and a letter that
changes the writing direction could make one name look like another.
"""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Return the text with invisible characters as escapes.

    >>> print(printable("a\x1b[31mb"))
    a\x1b[31mb
    """
    return text if text.isprintable() else "".join(map(_visible, text))


def _visible(letter: str) -> str:
    return letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
