"""Escape text in CSV that a spreadsheet would take for a formula.

Spreadsheets take a cell that begins with `=`, `+`, `-` or `@` for a formula, and a formula may run programs. Some also
accept the full-width forms of these signs, and ignore tabs and line ends before them. Such text gets a leading
apostrophe. Text with apostrophes before such a sign gets one more, so that `plain` can always undo it.
"""

from __future__ import annotations

import re
from typing import Final

_FORMULA: Final = re.compile("'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")


def guarded(text: str) -> str:
    """Return the text with an apostrophe in front if it would be a formula.

    >>> guarded("-x"), guarded("'-x"), guarded("billing"), guarded("'t is")
    ("'-x", "''-x", 'billing', "'t is")
    """
    return f"'{text}" if _FORMULA.match(text) else text


def plain(cell: str) -> str:
    """Return the text that `guarded` made the cell from.

    >>> plain("'-x"), plain("''-x"), plain("-x"), plain("'t is")
    ('-x', "'-x", '-x', "'t is")
    """
    return cell.removeprefix("'") if _FORMULA.match(cell) else cell
