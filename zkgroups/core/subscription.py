"""Which topics a registration means, as the Scala client reads white lists and black lists."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from ..exceptions import InvalidOptionError
from .model import Pattern, Registration

INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state"})
"""Kafka's own topics, which no pattern of a Scala member matches."""

_JAVA_BLANKS = "".join(map(chr, range(0x21)))

# What regular expressions of Java and of Python may both have, and mean the same by. They part where `{` stands for
# itself, at named groups, comments, references and sets within sets; what else Java refuses, Python refuses too.
_PORTABLE = re.compile(
    r"""
    (?:\(\?[ims]+\))?
    (?: [^\\\[({*+?]
      | [*+?]
      | \{[0-9]{1,9}\}
      | \((?:\?(?:[:=!>]|<[=!])|(?!\?))
      | \\(?:[bBdDwWsS]|[^a-zA-Z0-9])
      | \[\^?+(?:(?!--|&&|\|\||~~)[^\\\[\]]|\\(?:[dDwWsS]|[^a-zA-Z0-9]))++\]
    )*+
    """,
    re.VERBOSE,
)


def topic_expression(expression: str) -> str:
    """The regular expression that the Scala client makes of a white or black list: commas are alternatives.

    >>> topic_expression("orders, refunds.*")
    'orders|refunds.*'
    """
    stripped = expression.strip(_JAVA_BLANKS).replace(",", "|").replace(" ", "")
    return re.sub(r"""["']+$""", "", re.sub(r"""^["']+""", "", stripped))


def check_expression(expression: object) -> str:
    """Return an expression that all clients read alike, or refuse it: what Java cannot compile stops Scala members."""
    if not isinstance(expression, str):
        raise InvalidOptionError("topic pattern", expression, "it must be text")
    regex = topic_expression(expression)
    if not _PORTABLE.fullmatch(regex):
        raise InvalidOptionError("topic pattern", expression, "it is no regular expression to Java and Python alike")
    try:
        expression.encode()
        re.compile(regex)
    except (re.error, UnicodeEncodeError, RecursionError) as error:
        raise InvalidOptionError("topic pattern", expression, f"it is no regular expression: {str(error)!a}") from error
    return expression


def subscribed_topics(registration: Registration, topics: Iterable[str]) -> dict[str, int]:
    """The topics a registration means, with the streams for each; `topics` are all that a pattern can choose from.

    A static subscription names its topics, whether they exist or not. Of several expressions Scala takes the first.

    >>> subscribed_topics(Registration({"order.*": 2}, Pattern.WHITE_LIST), ["orders", "refunds"])
    {'orders': 2}
    """
    if registration.pattern is Pattern.STATIC:
        return dict(registration.streams)
    listed = registration.pattern is Pattern.WHITE_LIST
    for expression, streams in registration.streams.items():
        matches = re.compile(topic_expression(expression)).fullmatch
        chosen = (t for t in topics if registration.include_internal or t not in INTERNAL_TOPICS)
        return {t: streams for t in chosen if bool(matches(t)) is listed}
    return {}
