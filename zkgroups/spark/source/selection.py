"""Which groups and topics a task reads: what the options ask for, and of that the task's own share.

A share is made of topics, not of groups, so that one huge group is read by all tasks. Which topic is whose follows from
the names alone: tasks need not talk, and a topic that appears meanwhile is read by one of them and not by two. Of what
has no topic, a group's members or a group that may not be listed, the group's name decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from zlib import crc32


@dataclass(frozen=True)
class Selection:
    """What to read.

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
        """Whether a group is to be read, by somebody."""
        return self._group_expression.fullmatch(group) is not None

    def has_topic(self, group: str, topic: str) -> bool:
        """Whether a topic of such a group is to be read here; empty is what has no topic."""
        if topic and self._topic_expression.fullmatch(topic) is None:
            return False
        return self.shares == 1 or crc32(f"{group}/{topic}".encode()) % self.shares == self.share
