"""The list of files in a folder, by which readers detect missing, truncated and added files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

_MAX_SHOWN: Final = 5
"""The number of files to name in an error."""


@dataclass(frozen=True, slots=True)
class FileList:
    """The number of rows in a folder, and its files with their lengths."""

    rows: int
    files: Mapping[str, int]

    def to_json(self) -> str:
        """Encode the list."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> FileList:
        """Decode a list. Raise ValueError if the text is not a list of files."""
        try:
            fields: dict[str, Any] = json.loads(text)
            return cls(int(fields["rows"]), {str(name): int(length) for name, length in fields["files"].items()})
        except (LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"not a list of files: {error!r}") from error


def missing_files(found: Mapping[str, int], expected: Mapping[str, int], of: str = "") -> list[str]:
    """Describe the expected files that are missing or have another length."""
    missing = [f"{file}{of} is missing" for file in expected if file not in found]
    wrong = [
        f"{file}{of} has {found[file]} bytes, not {length}"
        for file, length in expected.items()
        if found.get(file, length) != length
    ]
    return missing + wrong


def added_files(found: Mapping[str, int], expected: Mapping[str, int]) -> list[str]:
    """Describe the files that are not expected."""
    return [f"{file} is not in the list of files" for file in found if file not in expected]


def join_problems(problems: list[str]) -> str:
    """Join descriptions for an error message, and name only the first few files."""
    more = len(problems) - _MAX_SHOWN
    return "; ".join(problems[:_MAX_SHOWN] + [f"and {more} more"] * (more > 0))
