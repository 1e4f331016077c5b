"""Read one share of a table, from a server or from its files, with all that the options add to the rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..core.selection import Selection
from ..datadir.data_dir import DataDirState
from . import data_dir_reader
from .source_options import SourceOptions, Starting
from .table_reader import read_batches, with_log_ends, written_after


def read_share(
    options: SourceOptions, selection: Selection, state: DataDirState | None, always: Sequence[str] = ()
) -> Iterator[Any]:
    """Read one share as Arrow batches. `state` is that of a data directory, if the options name one.

    With a `starting_zxid`, older rows are left out, except those of the groups in `always`.
    """
    if state is not None:
        found = data_dir_reader.read_batches(options, selection, state)
    else:
        found = read_batches(options, selection)
    start = options.starting_zxid
    if not isinstance(start, Starting):
        found = (written_after(batch, start, or_in=always) for batch in found)
    return with_log_ends(found, options)
