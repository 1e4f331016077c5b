"""Which groups and topics a task reads: what the options ask for, what a query needs of it, and the task's own share.

A share is made of topics, not of groups, so that one huge group is read by all tasks. Which topic is whose follows from
the names alone: tasks need not talk, and a topic that appears meanwhile is read by one of them and not by two. Of what
has no topic, a group's members or a group that may not be listed, the group's name decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Final
from zlib import crc32


class Test(Enum):
    """How a text is compared."""

    IS = "is"
    IS_ONE_OF = "is one of"
    STARTS_WITH = "starts with"
    ENDS_WITH = "ends with"
    CONTAINS = "contains"


_TESTS: Final[dict[Test, Callable[[str, tuple[str, ...]], bool]]] = {
    Test.IS: lambda text, values: text == values[0],
    Test.IS_ONE_OF: lambda text, values: text in values,
    Test.STARTS_WITH: lambda text, values: text.startswith(values[0]),
    Test.ENDS_WITH: lambda text, values: text.endswith(values[0]),
    Test.CONTAINS: lambda text, values: values[0] in text,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on a name, out of a query."""

    test: Test
    values: tuple[str, ...]

    def holds(self, text: str) -> bool:
        """Whether the name meets it."""
        return _TESTS[self.test](text, self.values)


@dataclass(frozen=True)
class Selection:
    """What to read.

    >>> selection = Selection(groups="bill.*", topic_conditions=(Condition(Test.IS, ("orders",)),))
    >>> selection.has_group("billing"), selection.has_group("the bill")
    (True, False)
    >>> selection.has_topic("billing", "orders"), selection.has_topic("billing", "refunds")
    (True, False)
    """

    groups: str | None = None
    topics: str | None = None
    group_conditions: tuple[Condition, ...] = ()
    topic_conditions: tuple[Condition, ...] = ()
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
        if self._group_expression.fullmatch(group) is None:
            return False
        return all(condition.holds(group) for condition in self.group_conditions)

    def has_topic(self, group: str, topic: str) -> bool:
        """Whether a topic of such a group is to be read here; empty is what has no topic."""
        if topic and self._topic_expression.fullmatch(topic) is None:
            return False
        if not all(topic and condition.holds(topic) for condition in self.topic_conditions):
            return False
        return crc32(f"{group}/{topic}".encode()) % self.shares == self.share
