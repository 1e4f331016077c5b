"""Answer bash without click, for words that need no server: commands, options, and values from a list.

`make docs` writes the words into `completion.json`. To import click and a command would take several times as long.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

TABLE: Final = Path(__file__).with_name("completion.json")
ASK_CLICK: Final = "?"
"""The kind of an option whose values are not in the table."""

_TWO_VALUES: Final = "??"
_SPLIT_BY_BASH: Final = frozenset("'\"\\=:\n")


def fast_answer(environ: Mapping[str, str]) -> str | None:
    """Return the lines for bash; None if click must answer."""
    line, place = environ.get("COMP_WORDS", ""), environ.get("COMP_CWORD", "")
    if not place.isdigit() or _SPLIT_BY_BASH & set(line):
        return None
    words = line.split()
    incomplete = "".join(words[int(place) : int(place) + 1])
    try:
        found = _candidates(json.loads(TABLE.read_text()), words[1 : int(place)], incomplete)
    except (OSError, ValueError):
        return None
    if found is None:
        return None
    return "".join(f"plain,{name}\n" for name in found if name.lower().startswith(incomplete.lower()))


def _candidates(table: dict[str, Any], words: list[str], incomplete: str) -> list[str] | None:
    command, given, pending = table, list[Any](), None
    for word in words:
        if pending is not None:
            pending = None
        elif word.startswith("-"):
            option = next((each for each in (*command["options"], *table["global"]) if word in each[0]), None)
            if option is None or option[1] == _TWO_VALUES:
                return None
            given.append(option)
            pending = None if option[1] is None else option
        elif "commands" in command:
            command, given = command["commands"].get(word), []
            if command is None:
                return None
    if incomplete.startswith("-"):
        options = (*command["options"], *table["global"])
        return [name for each in options if each[2] or each not in given or each is pending for name in each[0]]
    if pending is not None:
        return None if pending[1] == ASK_CLICK else pending[1]
    return list(command.get("commands", ())) if "commands" in command or not command["arguments"] else None
