"""The groups and topics that one task reads.

A share consists of topics, not groups, so that all tasks read from one huge group. The hash of the names decides which
task reads a topic. So tasks need no coordination, and exactly one of them reads a topic that is created meanwhile.
Rows without a topic (members, and groups that may not be listed) are assigned by the name of the group.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from zlib import crc32

from ..input_errors import InvalidOptionError


@dataclass(frozen=True)
class Selection:
    """Expressions for groups and topics, and the number of a share.

    >>> selection = Selection(groups="bill.*", topics="orders")
    >>> selection.has_group("billing"), selection.has_group("the bill")
    (True, False)
    >>> selection.has_topic("billing", "orders"), selection.has_topic("billing", "refunds")
    (True, False)
    """

    groups: str | None = None
    topics: str | None = None
    share: int = 0
    shares: int = 1

    @cached_property
    def _group_expression(self) -> re.Pattern[str]:
        return re.compile(".*" if self.groups is None else self.groups, re.DOTALL)

    @cached_property
    def _topic_expression(self) -> re.Pattern[str]:
        return re.compile(".*" if self.topics is None else self.topics, re.DOTALL)

    def has_group(self, group: str) -> bool:
        """Return whether the group is selected in any share."""
        return self._group_expression.fullmatch(group) is not None

    def has_topic(self, group: str, topic: str) -> bool:
        """Return whether the topic of a selected group belongs to this share; "" stands for no topic."""
        if topic and self._topic_expression.fullmatch(topic) is None:
            return False
        return self.shares == 1 or crc32(f"{group}/{topic}".encode()) % self.shares == self.share


def check_expression(option: str, expression: str | None) -> None:
    """Raise InvalidOptionError unless the text is a valid regular expression."""
    try:
        re.compile(expression or "")
    except (re.error, RecursionError) as error:
        raise InvalidOptionError(option, expression, f"it is not a regular expression: {error}") from error
