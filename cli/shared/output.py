"""Write data to stdout: the rows of a declared table in the chosen format. No other module writes data.

A row is a mapping of JSON values; an unknown value is None. A table declares its columns, and the fields they show.
Details of a row with several lines, e.g. the partitions of a group, are tables inside the table. CSV and names have one
line per row, so they omit such details; but a table may name one of them whose rows become the lines of CSV.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from textwrap import indent
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TextIO

import click

from zkgroups.exceptions import MissingDependencyError

from .messages import counted, printable
from .options import Color, Format, Options

if TYPE_CHECKING:
    from rich.console import Console


SCHEMA: Final = 1
"""The version of the JSON and YAML output. It changes if a field is removed or redefined, not if one is added."""

Row = Mapping[str, Any]

_NO_TOTALS: Final[Row] = MappingProxyType({})


class Column(NamedTuple):
    """One column: its header, and the field it shows. A path such as `owners.id` leads to a nested field."""

    header: str
    field: str
    wide: bool = False
    """Show the column only in the format `wide`."""
    show: Callable[[Any], str] = str
    """Format a value for a table. None is shown as a dash, and a list element by element."""
    right: bool = False
    styles: Mapping[str, str] = MappingProxyType({})
    """Colours, by the formatted text."""


class Table(NamedTuple):
    """The name of the rows in JSON, their columns, and the tables inside each row."""

    name: str
    columns: tuple[Column, ...]
    key: str
    """The field that names a row."""
    details: tuple[Table, ...] = ()
    csv: Table | None = None
    """The element of `details` whose rows are the lines of CSV."""

    def with_moved(self, moved: Collection[str]) -> Table:
        """Add a column for the names on the brokers, if any group was moved there."""
        return self._replace(columns=(*self.columns, MOVED_TO)) if moved else self


MOVED_TO: Final = Column("MOVED-TO", "moved_to")
AT: Final = (Column("TOPIC", "topic"), Column("PARTITION", "partition", right=True))
GROUP_AT: Final = (Column("GROUP", "group"), *AT)


class Output:
    """Writes the data of a command in the chosen format."""

    def __init__(self, options: Options, *, default: Format = Format.TABLE) -> None:
        self.format = Format(options.output or default)
        if self.format is Format.YAML:
            try:
                import yaml  # noqa: F401
            except ModuleNotFoundError as error:
                raise MissingDependencyError(
                    "-o yaml needs PyYAML; from the checkout: pip install '.[yaml]'"
                ) from error
        self._options = options
        self._headers = not options.no_headers
        self._color = Color(options.color)
        # The shell may have closed stdout.
        self._stream: TextIO = sys.stdout or open(os.devnull, "w")  # noqa: SIM115, PTH123
        self._is_terminal = self._stream.isatty()
        self._widths: list[int] = []
        """The widths of the last table in plain text, for its continuation."""

    def write(self, table: Table, rows: Iterable[Row], totals: Row = _NO_TOTALS) -> None:
        """Write all rows. JSON lines, CSV and names are written row by row, other formats at the end.

        JSON and YAML show `totals` after the rows.
        """
        writers: dict[Format, Callable[[Table, Iterable[Row]], None]] = {
            Format.JSON: partial(self._write_json, totals=totals),
            Format.YAML: partial(self._write_yaml, totals=totals),
            Format.JSONL: self._write_jsonl,
            Format.CSV: self._write_csv,
            Format.NAME: self._write_names,
        }
        writers.get(self.format, self._write_table)(table, rows)

    def write_done(self, table: Table, rows: Iterable[Row], totals: Row = _NO_TOTALS) -> None:
        """Write rows whose iteration makes changes. All rows are iterated, even if stdout cannot be written."""
        doing = map(dict, rows)  # not a generator, which a failed write would close
        try:
            self.write(table, doing, totals)
        except OSError as error:
            deque(doing, maxlen=0)
            if not isinstance(error, BrokenPipeError):
                raise

    def line(self, text: str = "") -> None:
        """Write a line of text, with invisible characters escaped."""
        self._put(printable(text))

    def separate(self, *, first: bool) -> None:
        """Clear a terminal, or print an empty line between two outputs for people, before a table is shown again."""
        if self._is_terminal:
            click.clear()
        elif not first and self.format not in {Format.JSON, Format.JSONL, Format.YAML}:
            self.line()

    def text(self, text: str) -> None:
        """Write several lines of trusted text."""
        self._put(text.rstrip("\n"))

    def _put(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def _all(self, table: Table, rows: Iterable[Row]) -> list[Row]:
        """Collect all rows, for formats that need them at once. Show on a terminal how many were read so far."""
        return list(counted(self._options, rows, table.name))

    # For programs

    def _write_json(self, table: Table, rows: Iterable[Row], totals: Row) -> None:
        self._put(json.dumps({"schema": SCHEMA, table.name: self._all(table, rows), **totals}, indent=2))

    def _write_yaml(self, table: Table, rows: Iterable[Row], totals: Row) -> None:
        import yaml

        document = {"schema": SCHEMA, table.name: self._all(table, rows), **totals}
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
        """Return a value for CSV. Text is escaped if a spreadsheet would take it for a formula."""
        from zkgroups.core.offsets.files import escape_formula

        text = self._raw(value)
        return escape_formula(text) if _is_text(value) else text

    def _raw(self, value: Any) -> str:
        """Return a value unchanged, for programs. On a terminal, invisible characters are escaped."""
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

    def _draw(self, table: Table, rows: Sequence[Row], *, is_continued: bool = False) -> None:
        """Draw rows as a table. A continued table has no headers."""
        columns = [column for column in table.columns if self.format is Format.WIDE or not column.wide]
        cells = [[_shown(column, _pick(row, column.field)) for column in columns] for row in rows]
        if not cells:
            return
        if self._is_terminal or self._color is Color.ALWAYS:
            self._draw_rich(columns, cells, is_continued=is_continued)
        else:
            self._draw_plain(columns, cells, is_continued=is_continued)

    def _draw_plain(self, columns: Sequence[Column], cells: Sequence[Sequence[str]], *, is_continued: bool) -> None:
        """Draw a table aligned and never cut, for a file or a pipe. It is also much faster than rich."""
        lines = [[column.header for column in columns], *cells] if self._headers and not is_continued else cells
        cell_len = _cell_len(lines)
        widths = [max(map(cell_len, texts)) for texts in zip(*lines, strict=True)]
        if is_continued:
            widths = list(map(max, widths, self._widths))
        self._widths = widths
        for line in lines:
            padded = [
                " " * (width - cell_len(text)) + text if column.right else text + " " * (width - cell_len(text))
                for column, text, width in zip(columns, line, widths, strict=True)
            ]
            print("  ".join(padded).rstrip(), file=self._stream)
        self._stream.flush()

    def _draw_rich(self, columns: Sequence[Column], cells: Sequence[Sequence[str]], *, is_continued: bool) -> None:
        """Draw a table that fits the terminal. Long cells continue on the next line."""
        from rich.table import Table as RichTable
        from rich.text import Text

        drawn = RichTable(
            box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=self._headers and not is_continued
        )
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
            # Wide lines are not folded, so that they can be copied from the terminal.
            width=None if self._is_terminal and self.format is not Format.WIDE else _UNLIMITED,
            color_system=None if self._color is Color.NEVER else "standard" if always else "auto",
            force_terminal=True if always else None,
        )


_UNLIMITED: Final = 1_000_000
_LONGEST_PAUSE: Final = 86_400.0
"""The longest wait for one poll, in seconds."""


def wait_while_read(seconds: float) -> None:
    """Wait, but raise BrokenPipeError if the reader of stdout has closed it: the next write may be hours away."""
    watched = select.poll()
    with contextlib.suppress(OSError):  # stdout is not a file
        if sys.stdout is not None:
            watched.register(sys.stdout.fileno(), 0)  # errors are always reported
    if watched.poll(min(seconds, _LONGEST_PAUSE) * 1000):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def _cell_len(lines: Iterable[Iterable[str]]) -> Callable[[str], int]:
    """Return a function for the width of a text on a terminal. For ASCII it does not need rich."""
    if all(text.isascii() for line in lines for text in line):
        return len
    from rich.cells import cell_len

    return cell_len


def _pick(row: Any, path: str) -> Any:
    """Return the value at a path. For a list on the path, return a list of the values of its elements."""
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


# Write rows while they are read, in every format, so that a command with millions of rows needs little memory.
#
# A table is drawn in pages, because its widths depend on its rows. JSON and YAML are written as one document, row by
# row: if the command fails, the document is incomplete.


_PAGE: Final = 1000
"""The rows of a page of a table."""


class StreamedOutput(Output):
    """Writes the rows of a command in the chosen format, each after it was read."""

    def stream(self, table: Table, rows: Iterable[Row]) -> None:
        """Write all rows."""
        if self.format is Format.JSON:
            self._stream_json(table, rows)
        elif self.format is Format.YAML:
            self._stream_yaml(table, rows)
        elif self.format in {Format.TABLE, Format.WIDE}:
            for number, page in enumerate(_pages(rows)):
                self._draw(table, page, is_continued=number > 0)
        else:
            self.write(table, rows)

    def _stream_json(self, table: Table, rows: Iterable[Row]) -> None:
        """Write the same text as `write`."""
        self._stream.write(f'{{\n  "schema": {SCHEMA},\n  "{table.name}": [')
        end = "]\n}"
        for row in rows:
            self._stream.write("\n" if end == "]\n}" else ",\n")
            self._stream.write(indent(json.dumps(row, indent=2), "    "))
            end = "\n  ]\n}"
        self._put(end)

    def _stream_yaml(self, table: Table, rows: Iterable[Row]) -> None:
        """Write the same text as `write`."""
        import yaml

        self._stream.write(f"---\nschema: {SCHEMA}\n{table.name}:")
        end = " []"
        for row in rows:
            if end:
                self._stream.write("\n")
            self._stream.write(yaml.safe_dump([json.loads(json.dumps(row))], sort_keys=False))
            end = ""
        self._put(end) if end else self._stream.flush()


def _pages(rows: Iterable[Row]) -> Iterator[list[Row]]:
    left = iter(rows)
    while page := list(islice(left, _PAGE)):
        yield page
