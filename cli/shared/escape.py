"""Making other people's text fit for a terminal.

Names and data come out of ZooKeeper, where anybody may have written them: an escape sequence could move the cursor,
recolour the screen or hide a line, and a letter that turns the direction of writing could make one name look like
another.
"""

from __future__ import annotations


def printable(text: str) -> str:
    r"""The text with everything that is not plainly visible written as an escape.

    >>> print(printable("a\x1b[31mb"))
    a\x1b[31mb
    """
    return text if text.isprintable() else "".join(map(_visible, text))


def _visible(letter: str) -> str:
    return letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
