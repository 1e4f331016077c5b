"""The names of groups on the target: renaming, validity, and conflicts."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ...input_errors import InvalidNameError, InvalidOptionError
from ..znodes.names import check_group

MAX_GROUP_BYTES: Final = 32_767
"""Kafka's protocol stores the length in 16 bits."""


@dataclass(frozen=True, slots=True)
class Renaming:
    """The new names of groups: by a map first, then by a regular expression, otherwise unchanged.

    >>> renaming = Renaming({"billing": "accounts"}, r"team-(.*)", r"\\1")
    >>> [renaming.target(name) for name in ("billing", "team-orders", "other")]
    ['accounts', 'orders', 'other']
    """

    names: Mapping[str, str] = field(default_factory=dict)
    pattern: str = ""
    replacement: str = ""

    def __post_init__(self) -> None:
        for old, new in self.names.items():
            if reason := name_error(new):
                raise InvalidOptionError("rename", f"{old}={new}", f"it is not a valid group name: {reason}")
        try:
            re.compile(self.pattern).sub(self.replacement, "")
            self.replacement.encode()
        except (re.error, IndexError, UnicodeEncodeError) as error:
            raise InvalidOptionError("rename", self.pattern, f"it is not a regular expression: {error}") from error

    def target(self, group: str) -> str:
        """Return the name of a group on the target. An expression may produce an invalid one: see `name_error`."""
        if group in self.names:
            return self.names[group]
        found = re.fullmatch(self.pattern, group) if self.pattern else None
        return group if found is None else found.expand(self.replacement)


def name_error(name: str) -> str | None:
    """Explain why a group cannot have this name, or return None for a valid name."""
    try:
        check_group(name)
    except InvalidNameError as error:
        return str(error)
    return f"the name is longer than {MAX_GROUP_BYTES} bytes" if len(name.encode()) > MAX_GROUP_BYTES else None


def conflicts(targets: Mapping[str, str]) -> dict[str, list[str]]:
    """Given the target of each group, return the targets that several groups share, with these groups."""
    sources: defaultdict[str, list[str]] = defaultdict(list)
    for group, target in sorted(targets.items()):
        sources[target].append(group)
    return {target: groups for target, groups in sources.items() if len(groups) > 1}
