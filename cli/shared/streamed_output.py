"""Write rows while they are read, in every format, so that a command with millions of rows needs little memory.

A table is drawn in pages, because its widths depend on its rows. JSON and YAML are written as one document, row by row:
if the command fails, the document is incomplete.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from textwrap import indent
from typing import Final

from .options import Format
from .output import SCHEMA, Output, Row, Table

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
