"""Choose logs: those of a period, or parts of similar size for several readers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ...core.history.period import Moment, Period
from ...exceptions import DamagedDataError, NotFoundError
from ..data_dir import DataDir
from ..files import DataFile, DataFiles, data_files
from ..log_file import LogFile
from ..transaction_format import HEAD

_CLOCKS_MS: Final = 3_600_000
"""The greatest difference between the clocks of two leaders. Each log may have times of another leader."""


class LogPart(NamedTuple):
    """Consecutive logs, by the first transactions in their names."""

    first: int
    last: int


def history_files(data: DataDir) -> DataFiles:
    """List the files of a data directory. Raise NotFoundError if it has no logs."""
    files = data_files(data.folder, data.log_folder)
    if not files.logs:
        reason = f"{data.folder} has no transaction logs"
        raise NotFoundError(f"{reason}: if the server has a dataLogDir, give it, too")
    return files


def log_parts(logs: Sequence[DataFile], count: int) -> list[LogPart]:
    """Divide logs into at most so many parts of similar size."""
    sizes = [max(1, log.path.stat().st_size) for log in logs]
    done, total, parts = 0, sum(sizes), dict[int, list[int]]()
    for log, size in zip(logs, sizes, strict=True):
        parts.setdefault((done + size // 2) * count // total, []).append(log.zxid)
        done += size
    return [LogPart(part[0], part[-1]) for part in parts.values()]


def logs_of_period(logs: Sequence[DataFile], period: Period) -> Sequence[DataFile]:
    """Return the logs that may have transactions of a period, at least one."""
    first, last = 0, len(logs) - 1
    while last > 0 and period.until is not None and _begins_after(logs[last], period.until):
        last -= 1
    if period.since is not None:
        first = last
        while first > 0 and not _begins_before(logs[first], period.since):
            first -= 1
    return logs[first : last + 1]


def _begins_after(log: DataFile, moment: Moment) -> bool:
    """Return whether all transactions of a log are certainly later than a moment."""
    if moment.time_ms is None:
        return moment.is_before(log.zxid, 0)
    time_ms = _first_time_ms(log)
    return time_ms is not None and moment.time_ms < time_ms - _CLOCKS_MS


def _begins_before(log: DataFile, moment: Moment) -> bool:
    """Return whether all transactions before a log are certainly earlier than a moment."""
    if moment.time_ms is None:
        return not moment.is_before(log.zxid, 0)
    time_ms = _first_time_ms(log)
    return time_ms is not None and time_ms < moment.time_ms - _CLOCKS_MS


def _first_time_ms(log: DataFile) -> int | None:
    first = first_record(log)
    return int(HEAD.unpack_from(first)[3]) if first else None


def first_record(log: DataFile) -> bytes | None:
    """Return the first transaction in a log; None if it has none, or cannot be read."""
    try:
        return next(iter(LogFile(log.path, 0)), None)
    except (DamagedDataError, FileNotFoundError):
        return None
