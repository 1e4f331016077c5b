"""The text format of Prometheus, and OpenMetrics.

A family is a name with a type and a help text, followed by all of its samples. The formats differ in the name of
counters, in the content type, and in the last line.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

Number = int | float


class Kind(Enum):
    """The type of a family."""

    GAUGE = "gauge"
    COUNTER = "counter"


class Format(Enum):
    """The format of a whole answer, by its content type."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

    @property
    def end(self) -> str:
        """The end of an answer."""
        return "# EOF\n" if self is Format.OPENMETRICS else ""

    @classmethod
    def accepted(cls, accept: str) -> Format:
        """Choose by the header `Accept`.

        >>> Format.accepted("application/openmetrics-text;version=1.0.0,text/plain;q=0.5").name
        'OPENMETRICS'
        >>> Format.accepted("*/*").name
        'TEXT'
        """
        return cls.OPENMETRICS if "application/openmetrics-text" in accept else cls.TEXT


class Family(NamedTuple):
    """The name of a family without the suffix of counters, its type, and its help."""

    name: str
    kind: Kind
    help: str

    @property
    def sample(self) -> str:
        """The name in each line."""
        return f"{self.name}_total" if self.kind is Kind.COUNTER else self.name

    def header(self, format: Format) -> str:
        """Return the lines before the samples.

        >>> print(Family("x", Kind.COUNTER, "Things.").header(Format.TEXT), end="")
        # HELP x_total Things.
        # TYPE x_total counter
        """
        name = self.name if format is Format.OPENMETRICS else self.sample
        return f"# HELP {name} {self.help}\n# TYPE {name} {self.kind.value}\n"


def escaped(value: str) -> str:
    r"""Escape a label value.

    >>> print(escaped('a"b\\c'))
    a\"b\\c
    """
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return value


def labels(**pairs: str) -> str:
    """Format labels, as they follow the name of a sample.

    >>> labels(group="billing", topic="orders")
    '{group="billing",topic="orders"} '
    """
    shown = ",".join(f'{name}="{escaped(value)}"' for name, value in pairs.items())
    return f"{{{shown}}} " if shown else " "


def lines(family: Family, samples: Iterable[tuple[str, Number | None]]) -> str:
    """Format the samples of a family, each with its formatted labels. Samples without a value are left out."""
    name = family.sample
    return "".join([f"{name}{labels}{value}\n" for labels, value in samples if value is not None])
