"""The one place that writes data to stdout: rows of a declared table, in the format that was asked for.

A row is what its JSON is: a mapping of plain values, where a number is a number and what is unknown is None. A table
says which of the fields stand in which column. What a row has in several lines (the partitions of a group) is a table
inside the table. CSV and names are one line for each row, so they leave such tables out, unless the table says
which one of them CSV is about.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import select
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TextIO

from zkgroups.core.offsets.csv_cells import escape_formula
from zkgroups.exceptions import MissingDependencyError

from .escape import printable
from .options import Color, Format, Options
from .progress import counted

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA: Final = 1
"""The version of what JSON looks like; it changes when a field goes or changes its meaning, not when one is added."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its header, the field it shows, and how. A path such as `owners.id` goes into nested fields."""

    header: str
    field: str
    wide: bool = False
    """Only in the format `wide`."""
    show: Callable[[Any], str] = str
    """How people see the value; None is always a dash, and of a list each element is shown."""
    right: bool = False
    styles: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The colour of some values, by the text that is shown."""


@dataclass(frozen=True, slots=True)
class Table:
    """What the rows are called in JSON, their columns, and the tables inside each row."""

    name: str
    columns: tuple[Column, ...]
    key: str
    """The field that names a row."""
    details: tuple[Table, ...] = ()
    csv: Table | None = None
    """The one of `details` that has the lines of CSV."""


class Output:
    """Where a command puts its data."""

    def __init__(self, options: Options, *, default: Format = Format.TABLE) -> None:
        self.format = Format(options.output or default)
        if self.format is Format.YAML:
            _check_yaml()
        self._options = options
        self._headers = not options.no_headers
        self._color = Color(options.color)
        # Python has no stdout where the shell has closed it.
        self._stream: TextIO = sys.stdout or open(os.devnull, "w")  # noqa: SIM115, PTH123
        self._is_terminal = self._stream.isatty()

    def write(self, table: Table, rows: Iterable[Row]) -> None:
        """Write all rows. JSON lines, CSV and names appear as the rows come, the others at the end."""
        writers = {
            Format.JSON: self._write_json,
            Format.YAML: self._write_yaml,
            Format.JSONL: self._write_jsonl,
            Format.CSV: self._write_csv,
            Format.NAME: self._write_names,
        }
        writers.get(self.format, self._write_table)(table, rows)

    def write_done(self, table: Table, rows: Iterable[Row]) -> None:
        """Write rows that are made by doing something: it is done to the end, also where nobody reads of it."""
        doing = map(dict, rows)  # no generator: whoever stops to read does not close it
        try:
            self.write(table, doing)
        except OSError as error:
            deque(doing, maxlen=0)
            if not isinstance(error, BrokenPipeError):
                raise

    def line(self, text: str = "") -> None:
        """Write a line of a story."""
        self._put(printable(text))

    def text(self, text: str) -> None:
        """Write what is our own and has several lines."""
        self._put(text.rstrip("\n"))

    def _put(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def _all(self, table: Table, rows: Iterable[Row]) -> list[Row]:
        """For formats that need all before the first: who waits sees how many there are so far."""
        return list(counted(self._options, rows, table.name))

    # For programs

    def _write_json(self, table: Table, rows: Iterable[Row]) -> None:
        self._put(json.dumps({"schema": SCHEMA, table.name: self._all(table, rows)}, indent=2))

    def _write_yaml(self, table: Table, rows: Iterable[Row]) -> None:
        import yaml

        document = {"schema": SCHEMA, table.name: self._all(table, rows)}
        plain = json.loads(json.dumps(document))
        self.text(yaml.safe_dump(plain, sort_keys=False, explicit_start=True))

    def _write_jsonl(self, _table: Table, rows: Iterable[Row]) -> None:
        for row in rows:
            self._put(json.dumps({"schema": SCHEMA, **row}))

    def _write_csv(self, table: Table, rows: Iterable[Row]) -> None:
        import csv

        writer = csv.writer(self._stream, lineterminator="\n")
        fields = _csv_fields(table)
        if self._headers:
            writer.writerow(fields)
        for row in _csv_rows(table, rows):
            writer.writerow([self._cell(_pick(row, field)) for field in fields])
            self._stream.flush()

    def _write_names(self, table: Table, rows: Iterable[Row]) -> None:
        for row in rows:
            self._put(self._raw(row[table.key]))

    def _cell(self, value: Any) -> str:
        """A value in CSV: numbers unchanged, text escaped if a spreadsheet would take it for a formula."""
        text = self._raw(value)
        return escape_formula(text) if _is_text(value) else text

    def _raw(self, value: Any) -> str:
        """A value as it is, for a program to read; a terminal is protected all the same."""
        if isinstance(value, Mapping):
            value = json.dumps(value)
        text = "" if value is None else ",".join(map(self._raw, value)) if isinstance(value, list) else str(value)
        return printable(text) if self._is_terminal else text

    # For people

    def _write_table(self, table: Table, rows: Iterable[Row]) -> None:
        if not table.details:
            self._draw(table, self._all(table, rows))
            return
        for number, row in enumerate(rows):
            if number:
                self.line()
            self._draw(table, [row])
            for detail in table.details:
                if row[detail.name]:
                    self.line()
                    self._draw(detail, row[detail.name])

    def _draw(self, table: Table, rows: Sequence[Row]) -> None:
        columns = [column for column in table.columns if self.format is Format.WIDE or not column.wide]
        cells = [[_shown(column, _pick(row, column.field)) for column in columns] for row in rows]
        if not cells:
            return
        if self._is_terminal or self._color is Color.ALWAYS:
            self._draw_rich(columns, cells)
        else:
            self._draw_plain(columns, cells)

    def _draw_plain(self, columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> None:
        """Aligned and never cut, for a file or another program; also much quicker where there are many rows."""
        lines = [[column.header for column in columns], *cells] if self._headers else cells
        cell_len = _cell_len(lines)
        widths = [max(map(cell_len, texts)) for texts in zip(*lines, strict=True)]
        for line in lines:
            padded = [
                " " * (width - cell_len(text)) + text if column.right else text + " " * (width - cell_len(text))
                for column, text, width in zip(columns, line, widths, strict=True)
            ]
            print("  ".join(padded).rstrip(), file=self._stream)
        self._stream.flush()

    def _draw_rich(self, columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> None:
        """Fitted to the terminal: what is too long goes on in the next line, so that nothing is hidden."""
        from rich.table import Table as RichTable
        from rich.text import Text

        drawn = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=self._headers)
        for column in columns:
            drawn.add_column(
                Text(column.header),
                justify="right" if column.right else "left",
                no_wrap=column.right,
                overflow="fold",
            )
        for line in cells:
            texts = zip(columns, line, strict=True)
            drawn.add_row(*(Text(text, style=column.styles.get(text, "")) for column, text in texts))
        self._console().print(drawn)

    def _console(self) -> Console:
        from rich.console import Console

        always = self._color is Color.ALWAYS
        return Console(
            file=self._stream,
            # What is wide is to be copied, and a terminal breaks lines in a way that can be copied.
            width=None if self._is_terminal and self.format is not Format.WIDE else _UNLIMITED,
            color_system=None if self._color is Color.NEVER else "standard" if always else "auto",
            force_terminal=True if always else None,
        )


_UNLIMITED: Final = 1_000_000
_LONGEST_PAUSE: Final = 86_400.0
"""In seconds. What waits longer looks once a day."""


def wait_while_read(seconds: float) -> None:
    """Wait, but raise `BrokenPipeError` once nobody reads stdout any more: a write may be hours away."""
    watched = select.poll()
    with contextlib.suppress(OSError):  # stdout is no file
        if sys.stdout is not None:
            watched.register(sys.stdout.fileno(), 0)  # an error is told all the same
    if watched.poll(min(seconds, _LONGEST_PAUSE) * 1000):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def _check_yaml() -> None:
    """Raise an error before a command does anything whose result it could not write."""
    try:
        import yaml  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingDependencyError("-o yaml needs PyYAML: pip install 'zkgroups[yaml]'") from error


def _cell_len(lines: Iterable[Iterable[str]]) -> Callable[[str], int]:
    """Return a function for the width of a text on a terminal. For ASCII it does not need rich."""
    if all(text.isascii() for line in lines for text in line):
        return len
    from rich.cells import cell_len

    return cell_len


def _pick(row: Any, path: str) -> Any:
    """The value at a path; of a list on the way, the values of its elements."""
    name, _, rest = path.partition(".")
    value = row[name]
    if not rest or value is None:
        return value
    return [_pick(element, rest) for element in value] if isinstance(value, list) else _pick(value, rest)


def _is_text(value: Any) -> bool:
    return any(map(_is_text, value)) if isinstance(value, list) else isinstance(value, str)


def _shown(column: Column, value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_shown(column, element) for element in value) or "-"
    return "-" if value is None else printable(column.show(value))


def _csv_fields(table: Table) -> list[str]:
    if table.csv is None:
        return [column.field for column in table.columns]
    return [table.key, *(column.field for column in table.csv.columns)]


def _csv_rows(table: Table, rows: Iterable[Row]) -> Iterator[Row]:
    for row in rows:
        if table.csv is None:
            yield row
        else:
            yield from ({table.key: row[table.key], **line} for line in row[table.csv.name])
