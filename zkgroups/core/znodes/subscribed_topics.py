"""The topics that a registration subscribes to. White and black lists have the same meaning as for Scala members.

`registration_codec.py` reads and writes the JSON of a registration, with its subscription.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import compress, count
from typing import Final

from ...exceptions import InvalidOptionError
from ..java_regex.errors import ExpressionError
from ..java_regex.topic_filter import is_topic_of_kafka, topic_filter
from .values import Pattern, Registration

INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state"})
"""Kafka's internal topics. Patterns of Scala members never match them."""


def check_expression(expression: object) -> str:
    """Return the expression, or raise `InvalidOptionError`: it must mean the same to every member."""
    if not isinstance(expression, str):
        raise InvalidOptionError("topic pattern", expression, "it must be text")
    try:
        topic_filter(expression)
    except ExpressionError as error:
        reason = f"it cannot be used as a regular expression: {error}"
        raise InvalidOptionError("topic pattern", expression, reason) from error
    return expression


def subscribed_topics(registration: Registration, topics: Iterable[str]) -> dict[str, int]:
    """Return the topics of a registration, each with its number of streams. Patterns choose from `topics`.

    A static subscription names its topics, whether they exist or not. Of several expressions, only the first counts, as
    in Scala.

    >>> subscribed_topics(Registration({"order.*": 2}, Pattern.WHITE_LIST), ["orders", "refunds"])
    {'orders': 2}
    """
    if registration.pattern is Pattern.STATIC:
        return dict(registration.streams)
    listed = registration.pattern is Pattern.WHITE_LIST
    for expression, streams in registration.streams.items():
        chosen = _verdicts().chosen(expression, list(topics), listed=listed)
        return {t: streams for t in chosen if registration.include_internal or t not in INTERNAL_TOPICS}
    return {}


class _Verdicts:
    """A cache of which names each expression matches: groups share topic names, and members read them repeatedly.

    It is thread-safe: numbers are never reused, and every thread computes the same verdict.
    """

    def __init__(self) -> None:
        self._next = count()
        self._numbers: dict[str, int] = {}
        self._known: OrderedDict[str, bytearray] = OrderedDict()
        """For each expression, the verdict for each name, at the index of the name's number."""

    @property
    def full(self) -> bool:
        return len(self._numbers) > _MOST_NAMES

    def chosen(self, expression: str, names: Sequence[str], *, listed: bool) -> Iterable[str]:
        """Return the valid names that match the expression; if `listed` is false, the valid names that do not."""
        try:
            verdicts = self._look_up(expression, names)
        except LookupError:
            verdicts = self._compute(expression, names)
        return compress(names, verdicts.translate(_LISTED if listed else _NOT_LISTED))

    def _look_up(self, expression: str, names: Sequence[str]) -> bytes:
        known = self._known[expression]
        self._known.move_to_end(expression)
        verdicts = bytes(map(known.__getitem__, map(self._numbers.__getitem__, names)))
        if _UNKNOWN in verdicts:
            raise LookupError(expression)
        return verdicts

    def _compute(self, expression: str, names: Sequence[str]) -> bytes:
        matches = topic_filter(expression).matches
        numbers = [self._number(name) for name in names]
        known = self._known.setdefault(expression, bytearray())
        known.extend(bytes(max(0, max(numbers, default=0) + 1 - len(known))))
        for name, number in zip(names, numbers, strict=True):
            if known[number] == _UNKNOWN:
                known[number] = (_MATCHES if matches(name) else _DIFFERS) if is_topic_of_kafka(name) else _INVALID
        self._forget_oldest()
        return bytes(map(known.__getitem__, numbers))

    def _number(self, name: str) -> int:
        number = self._numbers.get(name)
        return self._numbers.setdefault(name, next(self._next)) if number is None else number

    def _forget_oldest(self) -> None:
        size = sum(len(expression) + len(known) for expression, known in list(self._known.items()))
        while size > _MOST_BYTES and len(self._known) > 1:
            expression, known = self._known.popitem(last=False)
            size -= len(expression) + len(known)


def _verdicts() -> _Verdicts:
    global _cache
    if _cache.full:
        _cache = _Verdicts()
    return _cache


_UNKNOWN, _DIFFERS, _MATCHES, _INVALID = range(4)
_LISTED: Final = bytes(verdict == _MATCHES for verdict in range(256))
_NOT_LISTED: Final = bytes(verdict == _DIFFERS for verdict in range(256))
_MOST_NAMES: Final = 2**19
_MOST_BYTES: Final = 2**25

_cache = _Verdicts()
