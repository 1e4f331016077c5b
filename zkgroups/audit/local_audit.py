"""Record and read an audit in this process, without Spark, in a folder of this machine. Spark can go on with it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from threading import Event
from typing import Any, Final

import pyarrow as pa

from ..core.audit_columns import KEY
from ..core.selection import check_expression
from ..tables.source_options import SourceOptions
from .arrow_journal import ArrowJournal
from .audit import AuditResult, AuditStep, Recording, check_interval
from .local_ledger import LocalLedger

_ORDER: Final = [(name, "ascending") for name in ("batch", "zxid", *KEY)]
_BATCH_ROWS: Final = 10_000


def run_audit(
    destination: str,
    source: SourceOptions | str,
    *,
    every: float = 10.0,
    once: bool = False,
    on_progress: Callable[[AuditStep], None] | None = None,
    stop: Event | None = None,
) -> AuditResult:
    """Record commits in a folder of this machine. `zkgroups.spark.run_audit` explains the arguments."""
    check_interval(every)
    source = SourceOptions(zookeeper=source) if isinstance(source, str) else source
    stop = stop or Event()
    return Recording(LocalLedger(destination, source, stop), source, every, once, on_progress, stop).go()


def read_commits(destination: str) -> Any:
    """Return every recorded commit as an Arrow table, in the order of batches and transactions."""
    journal = ArrowJournal.at(destination)
    journal.check_exists()
    return journal.read(journal.pieces()).sort_by(_ORDER)


def count_commits(destination: str) -> int:
    """Return the number of recorded commits. Reads no rows."""
    journal = ArrowJournal.at(destination)
    journal.check_exists()
    return journal.count()


def find_commits(destination: str, *, groups: str | None = None, topics: str | None = None) -> Iterator[dict[str, Any]]:
    """Return the commits of groups and topics whose whole names match, oldest first."""
    commits = read_commits(destination)
    for column, expression in (("group", groups), ("topic", topics)):
        check_expression(f"{column}s", expression)
        if expression is not None:
            matching = re.compile(expression, re.DOTALL)
            names = commits.column(column).combine_chunks().dictionary_encode()
            is_matching = [matching.fullmatch(name) is not None for name in names.dictionary.to_pylist()]
            commits = commits.filter(pa.array(is_matching, pa.bool_()).take(names.indices))
    for batch in commits.to_batches(max_chunksize=_BATCH_ROWS):
        yield from batch.to_pylist()
