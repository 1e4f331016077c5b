r"""The text of layouts, as users write it: the value of `--layout`, and after it those of `--stored` and `--value`.

    legacy
    kafka-1.1.0
    storm:/kafkastorm
    trident:/transactional
    spark:/spark-offsets --stored until
    /x/{group}/{topic}/{partition} --stored last --value regex:at=([0-9]+)

Plans, snapshots and the options of Spark's data source contain these texts.
"""

from __future__ import annotations

import re
from typing import Final

from ...input_errors import InvalidOptionError
from .kafka_1_1_0 import KAFKA_1_1_0
from .layout import Layout
from .legacy import LEGACY
from .path_template import check_root
from .spark import SparkLayout
from .stored_number import Stored
from .storm import StormLayout
from .template import TemplateLayout
from .trident import TridentLayout
from .value_format import Decimal, parse_value_format

FORMS: Final = (
    LEGACY.text,
    KAFKA_1_1_0.text,
    "storm:/PATH",
    "trident:/PATH",
    "spark:/PATH",
    "a path such as /x/{group}/{topic}/{partition}",
)
"""What the text of a layout may be, for messages."""

_TEXT: Final = re.compile(
    r"(?P<where>.*?)(?: --stored (?P<before>\S+))?"
    rf"(?: --value (?P<value>.*?)(?: --stored (?P<after>{'|'.join(Stored)}))?)?",
    re.DOTALL,
)
_OPTION: Final = re.compile(r" --(stored|value) ")
_STORED_AT_END: Final = re.compile(rf" --stored ({'|'.join(Stored)})\Z")


def parse_layout(text: str | Layout) -> Layout:
    """Return the layout that a text describes. Raise InvalidOptionError if it describes none.

    >>> layout = parse_layout("storm:/kafkastorm/")
    >>> layout.text, layout.root, layout.has_registrations
    ('storm:/kafkastorm', '/kafkastorm', False)
    >>> parse_layout("/x/{group}/{topic}/{partition} --value json:offset --stored last").text
    '/x/{group}/{topic}/{partition} --stored last --value json:offset'
    """
    if isinstance(text, Layout):
        return text
    found = _TEXT.fullmatch(text)
    assert found is not None  # `where` may be the whole text
    where, value, before, after = (found[name] for name in ("where", "value", "before", "after"))
    if before is not None and after is not None:
        raise InvalidOptionError("layout", text, "it has --stored twice")
    return layout_of(where, stored=before or after, value=value)


def layout_of(where: str, *, stored: str | None = None, value: str | None = None) -> Layout:
    """Return a layout, given the values of `--layout`, `--stored` and `--value`."""
    _check_options(where, value)
    kind, colon, root = where.partition(":")
    if where.startswith("/"):
        return TemplateLayout(where, parse_value_format(value or Decimal.text), _stored(stored) or Stored.NEXT)
    if value is not None:
        raise InvalidOptionError("value", value, "only a path with fields has a format of values")
    if kind == "spark" and colon:
        return SparkLayout(root, _stored(stored))
    if stored is not None:
        raise InvalidOptionError("stored", stored, f"the layout {where} always stores the next message")
    if where in (LEGACY.text, KAFKA_1_1_0.text):
        return LEGACY if where == LEGACY.text else KAFKA_1_1_0
    if kind == "storm" and colon:
        return StormLayout(check_root(kind, root))
    if kind == "trident" and colon:
        return TridentLayout(check_root(kind, root))
    raise InvalidOptionError("layout", where, f"it must be {', '.join(FORMS[:-1])} or {FORMS[-1]}")


def _check_options(where: str, value: str | None) -> None:
    """Refuse names of options at places where `parse_layout` would read them as options."""
    if _OPTION.search(where):
        raise InvalidOptionError("layout", where, "its path must not contain --stored or --value")
    if value is not None and _STORED_AT_END.search(value):
        raise InvalidOptionError("value", value, "it must not end with --stored")


def _stored(text: str | None) -> Stored | None:
    if text is not None and text not in set(Stored):
        raise InvalidOptionError("stored", text, f"it must be {', '.join(list(Stored)[:-1])} or {Stored.UNTIL}")
    return None if text is None else Stored(text)
