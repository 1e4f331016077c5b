"""The layout of any system whose nodes hold one offset each, described by a path with fields and a format of values.

/x/{group}/{topic}/{partition} --stored last --value json:position
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Final

from ...input_errors import InvalidOptionError
from ..znodes.codecs import DecodingError, is_int
from ..znodes.topic_partition import parse_partition
from .layout import (
    Field,
    Fields,
    Layout,
    OneOffsetPerNode,
    PathTemplate,
    Stored,
    check_root,
    next_message,
    stored_number,
)
from .legacy import KAFKA_1_1_0, LEGACY
from .spark import SparkLayout
from .storm import StormLayout
from .trident import TridentLayout
from .value_format import Decimal, ValueFormat, object_or_none, parse_value_format


class TemplateLayout(OneOffsetPerNode):
    """The offsets in nodes whose paths match a template."""

    def __init__(self, path: str, value: ValueFormat, stored: Stored) -> None:
        template = PathTemplate.parse(path)
        location = "/" + "/".join(segment.text for segment in template.segments)
        _check(template, location, stored)
        words = [location]
        words += [] if stored is Stored.NEXT else [f"--stored {stored}"]
        words += [] if value.text == Decimal.text else [f"--value {value.text}"]
        super().__init__(" ".join(words), location, [template], stored)
        self._value = value

    def decode(self, fields: Fields, data: bytes) -> tuple[str, int]:
        """Return the topic in the path, and the next message."""
        return fields[Field.TOPIC], next_message(self._value.number(data), self.stored)

    def rewritten(self, data: bytes, offset: int) -> bytes:
        """Replace the number."""
        number = stored_number(offset, self.stored)
        if number is None:
            raise DecodingError("no number means that nothing was processed")
        return self._value.with_number(data, number)


def _check(template: PathTemplate, location: str, stored: Stored) -> None:
    for needed in (Field.TOPIC, Field.PARTITION):
        if needed not in template.fields:
            raise InvalidOptionError("layout", location, f"the path needs {{{needed}}}")
    if Field.TRANSACTION in template.fields:
        raise InvalidOptionError("layout", location, "only trident has transactions")
    if Field.GROUP not in template.fields and template.root == "/":
        raise InvalidOptionError(
            "layout", location, "without {group}, it must begin with a name, which becomes the name of the group"
        )
    if stored not in (Stored.NEXT, Stored.LAST):
        raise InvalidOptionError("layout", location, "its numbers are --stored next or --stored last")


def recognize(names: Sequence[str], data: bytes, topics: Collection[str]) -> tuple[str, str] | None:
    """Return a path with fields and a format of values, if a node may hold the offset of a partition.

    Without a name of `topics` in the path, the name above the partition is taken for the topic; but only if no topics
    are known.

    >>> recognize(["x", "billing", "orders", "3"], b"41", ["orders"])
    ('/x/billing/{topic}/{partition}', 'decimal')
    """
    value = _recognize_value(data, is_sure=bool(topics))
    found = re.fullmatch("(.*?)([0-9]+)", names[-1] if names else "", re.DOTALL)
    if value is None or found is None or parse_partition(found[2]) is None or set("{}") & set("".join(names)):
        return None
    *above, _name = names
    if found[1][:-1] in topics and found[1]:
        return "/" + "/".join([*above, f"{{topic}}{found[1][-1]}{{partition}}"]), value
    places = [number for number, name in enumerate(above) if name in topics] or ([len(above) - 1] if not topics else [])
    if not places or places[-1] < 0:
        return None
    above[places[-1]] = "{topic}"
    return "/" + "/".join([*above, f"{found[1]}{{partition}}"]), value


_LIKELY: Final = ("offset", "nextOffset", "untilOffset", "position", "committed")
"""Names of JSON fields that hold an offset, the likeliest first."""


def _recognize_value(data: bytes, *, is_sure: bool) -> str | None:
    """Return the format of a value with a number. If the path is sure, any field may hold it, if it is the only one."""
    with suppress(DecodingError):
        Decimal().number(data)
        return Decimal.text
    values = object_or_none(data) or {}
    names = [name for name, value in values.items() if is_int(value)]
    likely = [name for name in _LIKELY if name in names] or (names if is_sure and len(names) == 1 else [])
    return f"json:{likely[0]}" if likely else None


# The text of layouts, as users write it: the value of `--layout`, and after it those of `--stored` and `--value`.
#
#     legacy
#     kafka-1.1.0
#     storm:/kafkastorm
#     trident:/transactional
#     spark:/spark-offsets --stored until
#     /x/{group}/{topic}/{partition} --stored last --value regex:at=([0-9]+)
#
# Plans, snapshots and the options of Spark's data source contain these texts.


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
