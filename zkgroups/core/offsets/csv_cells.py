"""Escape text in CSV that a spreadsheet would take for a formula.

Spreadsheets take a cell that begins with `=`, `+`, `-` or `@` for a formula, and a formula may run programs. Some also
accept the full-width forms of these signs, and ignore tabs and line ends before them. Such text gets a leading
apostrophe. Text with apostrophes before such a sign gets one more, so `unescape_formula` can always undo it.
"""

from __future__ import annotations

import re
from typing import Final

_FORMULA: Final = re.compile("'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")


def escape_formula(text: str) -> str:
    """Return the text, with a leading apostrophe if a spreadsheet would take it for a formula.

    >>> escape_formula("-x"), escape_formula("'-x"), escape_formula("billing"), escape_formula("'t is")
    ("'-x", "''-x", 'billing', "'t is")
    """
    return f"'{text}" if _FORMULA.match(text) else text


def unescape_formula(cell: str) -> str:
    """Return the text that `escape_formula` was given.

    >>> unescape_formula("'-x"), unescape_formula("''-x"), unescape_formula("-x"), unescape_formula("'t is")
    ('-x', "'-x", '-x', "'t is")
    """
    return cell.removeprefix("'") if _FORMULA.match(cell) else cell
