"""Every change to groups, from the transaction logs of a ZooKeeper server."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from ..core.history.changes import ALWAYS, KnownNode, Moment, Period
from ..core.history.events import HistoryEvent
from ..core.history.tracker import NEVER, GroupsTracker
from ..core.selection import check_expression
from ..core.times import to_ms, utc
from ..core.znodes.paths import CONSUMERS, Part
from ..core.znodes.topic_partition import check_group
from ..exceptions import DamagedDataError, InvalidOptionError, NotFoundError
from .data_dir import DataDir
from .files import (
    COUNTER,
    COUNTER_BITS,
    DataFile,
    DataFiles,
    IntactSnapshot,
    check_snapshot,
    data_files,
    follows,
    is_first,
    read_chunks,
    readable,
)
from .scan import STAT, ReplayedChanges, SnapshotScan
from .transaction_log import HEAD, SET_DATA, ChangeDecoder, LogFile, UnreadableTransaction

# Missing transactions: where a history begins, and where the logs have a gap.


class GapReason(StrEnum):
    """Why transactions are missing.

    - purged: older logs were deleted, as ZooKeeper does it after a while
    - missing: a log is missing, or the server was down: it gets no log of that time
    - damaged: a log cannot be read to its end
    - repeated: a log contains transactions that another one has had before, as after the restore of a backup; they are
      left out
    """

    PURGED = "purged"
    MISSING = "missing"
    DAMAGED = "damaged"
    REPEATED = "repeated"


@dataclass(frozen=True, slots=True)
class LogGap:
    """Transactions that a history does not contain.

    - `reason`: why they are missing.
    - `after`, `after_ms`: the last transaction before the gap, and its time; 0 at the beginning of the logs.
    - `before`, `before_ms`: the first transaction after the gap, and its time; None if none follows.
    - `complete_from`: after this transaction, no owner and no instance is unknown because of the gap.
    - `text`: an explanation that names the file.
    """

    reason: GapReason
    after: int
    after_ms: int
    before: int | None
    before_ms: int | None
    complete_from: int
    text: str

    def concerns(self, period: Period) -> bool:
        """Return whether transactions of the period may be missing."""
        since, until = period.since, period.until
        if since is not None and self.before is not None and not since.is_before(self.before, self.before_ms or 0):
            return False
        return until is None or until.is_after(self.after, self.after_ms)


# Choose logs: those of a period, or parts of similar size for several readers.


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
    """Divide logs into at most `count` parts of similar size."""
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


# Find out which nodes existed where a reading of logs begins.
#
# A server begins a new log whenever it writes a snapshot, and deletes old logs and snapshots together. So the first
# log that is left usually begins long before the first snapshot. A later snapshot shows earlier nodes, too: a node
# existed at a transaction if it was created until then, and its data is known if it was not written since. Nodes that
# were deleted in between are missing. The history is complete once the snapshot is.
#
# A snapshot is written while the tree changes, so it is complete at an unknown transaction after the one in its name.
# Its digest tells which one. Without a digest, it was complete when the next snapshot was begun, because a server
# writes one at a time.


_DATA_AT: Final = 4
_OFFSETS: Final = Part.OFFSETS.encode()


@dataclass(frozen=True, slots=True)
class Start:
    """The transaction after which to read, and a snapshot of that time or later; None if no node is known.

    After the transaction `complete_from`, no earlier change is missing.
    """

    after: int
    snapshot: IntactSnapshot | None
    complete_from: int

    @property
    def is_first_ever(self) -> bool:
        """True if nothing came before."""
        return self.complete_from == 0

    def nodes(self, chroot: str, group: str | None) -> Iterator[KnownNode]:
        """Yield the nodes of all groups, or of one group, that existed after the transaction."""
        if self.snapshot is None:
            return
        file, root = self.snapshot.file.path, f"{chroot}{CONSUMERS}".encode()
        below = root if group is None else root + f"/{group}".encode()
        scan = SnapshotScan(read_chunks(file), ReplayedChanges(), below, file=str(file), digest=False)
        for run in scan.runs():
            directory = run.directory[len(root) + 1 :]
            has_offsets = directory.split(b"/")[1:2] == [_OFFSETS]
            for name, record in zip(run.names, run.records, strict=True):
                czxid, mzxid, created_ms, _, version, _, _, session, _ = STAT.unpack_from(record, -STAT.size)
                if czxid <= self.after and (mzxid <= self.after or not has_offsets):
                    path = b"/".join((directory, name)) if directory else name
                    data = record[_DATA_AT : -STAT.size]
                    yield KnownNode(path, data, session, version, czxid, created_ms)


def start_before(files: DataFiles, zxid: int) -> Start:
    """Return the start of a reading whose first transaction is `zxid`, without the logs before it."""
    after = zxid - 1
    if is_first(zxid) and not any(0 < snapshot.zxid < zxid for snapshot in files.snapshots):
        return Start(after, None, 0)
    for snapshot in reversed(files.snapshots):
        if snapshot.zxid >= after and (intact := check_snapshot(snapshot)) is not None:
            return Start(after, intact, _complete_from(files, intact))
    return Start(after, None, NEVER)


def exact_start_before(files: DataFiles, log: DataFile) -> Start | None:
    """Return a start in earlier logs, from which the state at the beginning of a log is exact; None without one."""
    for snapshot in files.snapshots:
        if snapshot.zxid < log.zxid and (intact := check_snapshot(snapshot)) is not None:
            complete_from = _complete_from(files, intact)
            if complete_from < log.zxid:
                return Start(snapshot.zxid, intact, complete_from)
    return None


def _complete_from(files: DataFiles, snapshot: IntactSnapshot) -> int:
    """Return a transaction at which the snapshot was complete.

    The transaction after the digest may have been under way: the server changes the tree, and then the digest.
    """
    later = [each.zxid for each in files.snapshots if each.zxid > snapshot.file.zxid]
    digest = [snapshot.digest.zxid + 1] if snapshot.digest else []
    return min([*later, *digest], default=NEVER)


# Read the history of groups from the logs of a server, from one transaction to the next.
#
# Missing transactions are reported as a `LogGap` in their place, and never skipped silently. The reader then forgets
# all nodes, and begins again with the nodes of a later snapshot.
#
# A part of the logs can be read by itself. The state at its beginning comes from a snapshot that was complete by
# then, and from the logs since: they are read, too, but their events are left out. So the parts have exactly the
# events that one reader of all logs finds.


HistoryItem: TypeAlias = HistoryEvent | LogGap

_BEGINNING: Final = -(2**63)
"""The last transaction before the first one."""


class HistoryReader:
    """One pass through the logs of a period, or through a part of them.

    - `group`: the only group to read. It is faster than `has_group`, which selects groups by name.
    - `part`: the logs to read.

    Afterwards, `groups` has the names of the selected groups of which any node was seen, and `torn` is the last log if
    it ends within a record.
    """

    def __init__(
        self,
        data: DataDir,
        *,
        group: str | None = None,
        has_group: Callable[[str], bool] | None = None,
        period: Period = ALWAYS,
        part: LogPart | None = None,
    ) -> None:
        self.torn: Path | None = None
        self._data = data
        self._group = group
        self._decoder = ChangeDecoder(data.chroot, group)
        self._tracker = GroupsTracker(has_group or (lambda name: group in (None, name)))
        self._period = period
        self._part = part
        self._last = self._start_after = _BEGINNING
        self._last_ms = 0
        self._damage: DamagedDataError | None = None
        self._damage_before: DamagedDataError | None = None
        self._repeating: DataFile | None = None

    @property
    def groups(self) -> set[str]:
        """The names of the selected groups of which any node was seen."""
        return self._tracker.groups

    def items(self) -> Iterator[HistoryItem]:
        """Yield the events of all selected groups in the period, and the gaps between them."""
        return self._items() if self._period == ALWAYS else filter(self._is_in_period, self._items())

    def _is_in_period(self, item: HistoryItem) -> bool:
        if isinstance(item, LogGap):
            return item.concerns(self._period)
        return self._period.has(item.zxid, item.time_ms)

    def _items(self) -> Iterator[HistoryItem]:
        with readable(self._data.folder):
            files = history_files(self._data)
            chosen = logs_of_period(files.logs, self._period)
            part = self._part or LogPart(chosen[0].zxid, chosen[-1].zxid)
            for log in self._logs(files, part):
                items = self._read(files, log)
                if log.zxid < part.first:
                    deque(items, maxlen=0)
                elif log.zxid == part.first != files.logs[0].zxid:
                    yield from (item for item in items if not _is_gap_before(log, item))
                else:
                    yield from items
            if (gap := self._gap_at_end(files, part)) is not None:
                yield gap

    def _logs(self, files: DataFiles, part: LogPart) -> Sequence[DataFile]:
        """Return the logs to read: those of the part, and earlier ones that lead to its beginning."""
        logs = [log for log in files.logs if log.zxid <= part.last]
        first = next((log for log in logs if log.zxid == part.first), None)
        if first is None:
            raise NotFoundError(f"{self._data.folder} has no log.{part.first:x} any more: read it again from the start")
        if first is logs[0] or (start := exact_start_before(files, first)) is None:
            return logs
        self._begin(start)
        self._last = self._start_after = start.after
        leading = files.logs_after(start.after)[0].zxid
        return [log for log in logs if log.zxid >= leading]

    def _begin(self, start: Start) -> None:
        self._tracker.begin(start.nodes(self._data.chroot, self._group))
        self._tracker.complete_from(start.complete_from)

    def _read(self, files: DataFiles, log: DataFile) -> Iterator[HistoryItem]:
        """Yield the events of one log."""
        head, decoder, tracker, last = HEAD.unpack_from, self._decoder, self._tracker, self._last
        self._damage_before, self._damage = self._damage, None
        records = LogFile(log.path, max(last, 0))
        try:
            for record in records:
                session, request, zxid, time_ms, kind = head(record)
                if zxid != last + 1:
                    yield from self._gaps_before(files, log, zxid, time_ms)
                    if zxid <= last:
                        continue
                if kind == SET_DATA:
                    written = decoder.decode_write(record)
                    event = tracker.write(zxid, time_ms, session, *written) if written else None
                    last, self._last, self._last_ms = zxid, zxid, time_ms
                    if event is not None:
                        yield event
                else:
                    events = tracker.apply(decoder.decode(record, session, request, zxid, time_ms, kind))
                    last, self._last, self._last_ms = zxid, zxid, time_ms
                    yield from events
        except DamagedDataError as error:
            self._damage = error
        except UnreadableTransaction as error:
            reason = f"the transaction after 0x{last:x} cannot be read: {error}"
            self._damage = DamagedDataError(str(log.path), reason)
        except FileNotFoundError:
            pass  # it was purged since it was listed, which leaves a gap
        self.torn = log.path if records.torn else None

    def _gaps_before(self, files: DataFiles, log: DataFile, zxid: int, time_ms: int) -> Iterator[LogGap]:
        """Yield the gap before a transaction whose number does not follow the last one, if it shows any."""
        if zxid > self._last:
            if (gap := self._gap_before(files, log, zxid, time_ms)) is not None:
                yield gap
        elif zxid > self._start_after and self._repeating is not log:
            self._repeating = log
            yield _repeated(log, zxid, time_ms)

    def _gap_before(self, files: DataFiles, log: DataFile, zxid: int, time_ms: int) -> LogGap | None:
        """Begin with a transaction that does not follow the last one. Return the gap before it."""
        last = self._last
        if last != _BEGINNING and not _is_gap(files, last, zxid):
            return None
        start = start_before(files, zxid)
        self._begin(start)
        if last != _BEGINNING or self._damage_before is not None:
            return self._missing(zxid, time_ms, log, self._damage_before, start.complete_from)
        if start.is_first_ever:
            return None
        text = f"the logs begin with transaction 0x{zxid:x} of {utc(time_ms)}: older logs were deleted"
        return LogGap(GapReason.PURGED, 0, 0, zxid, time_ms, start.complete_from, text)

    def _gap_at_end(self, files: DataFiles, part: LogPart) -> LogGap | None:
        """Return the damage of the last log, or the gap between a part and the next log."""
        later = [log for log in files.logs if log.zxid > part.last] if self._part else []
        if later and (first := first_record(later[0])) is not None:
            _session, _request, zxid, time_ms, _kind = HEAD.unpack_from(first)
            if zxid > self._last and _is_gap(files, self._last, zxid):
                return self._missing(zxid, time_ms, later[0], self._damage, NEVER)
        elif self._damage is not None:
            return self._damaged(self._damage, None, None, NEVER)
        return None

    def _missing(
        self, zxid: int, time_ms: int, log: DataFile, damage: DamagedDataError | None, complete_from: int
    ) -> LogGap:
        if damage is not None:
            return self._damaged(damage, zxid, time_ms, complete_from)
        text = f"transactions are missing between 0x{self._last:x} and 0x{zxid:x}, with which {log.path} continues"
        return LogGap(GapReason.MISSING, self._last, self._last_ms, zxid, time_ms, complete_from, text)

    def _damaged(self, damage: DamagedDataError, zxid: int | None, time_ms: int | None, complete_from: int) -> LogGap:
        after = max(self._last, 0)
        return LogGap(GapReason.DAMAGED, after, self._last_ms, zxid, time_ms, complete_from, str(damage))


def _is_gap_before(log: DataFile, item: HistoryItem) -> bool:
    """Return whether an item is the gap between a log and the one before it. The previous part reports it."""
    return isinstance(item, LogGap) and item.reason is not GapReason.REPEATED and item.after < log.zxid


def _is_gap(files: DataFiles, last: int, zxid: int) -> bool:
    """Return whether transactions are missing between two. After a new leader, only a snapshot can show that."""
    if not follows(last, zxid):
        return True
    is_new_leader = zxid >> COUNTER_BITS > last >> COUNTER_BITS
    return is_new_leader and any(last < each.zxid < zxid and each.zxid & COUNTER for each in files.snapshots)


def _repeated(log: DataFile, zxid: int, time_ms: int) -> LogGap:
    text = f"{log.path} repeats transactions that an earlier log has, from 0x{zxid:x} on: they are left out"
    return LogGap(GapReason.REPEATED, zxid - 1, 0, zxid, time_ms, 0, text)


# Read a history with one call.


def read_history(
    folder: str,
    *,
    log_folder: str | None = None,
    chroot: str = "",
    group: str | None = None,
    groups: str | None = None,
    since: datetime | int | None = None,
    until: datetime | int | None = None,
) -> Iterator[HistoryItem]:
    """Yield every change to groups that is in the transaction logs of a ZooKeeper server, in order.

    - `folder`: its dataDir, or a copy of it. The server may be running.
    - `log_folder`: its dataLogDir, if the logs are elsewhere.
    - `chroot`: the chroot of the groups, such as `/kafka`.
    - `group`: only this group. `groups`: only groups whose whole name matches this regular expression.
    - `since`, `until`: only changes from and until this time (with a time zone), or this transaction.

    The events are `Commit`, `OwnerChange`, `MemberChange` and `GroupChange`. A `LogGap` stands where transactions are
    missing: at the beginning, if older logs were deleted, and wherever a log is missing or damaged.
    """
    if group is not None:
        check_group(group)
    check_expression("groups", groups)
    matching = None if groups is None else re.compile(groups, re.DOTALL)
    has_group = matching and (lambda name: group in (None, name) and matching.fullmatch(name) is not None)
    period = Period(_moment("since", since), _moment("until", until))
    data = DataDir(folder, log_folder=log_folder, chroot=chroot.rstrip("/"))
    return HistoryReader(data, group=group, has_group=has_group, period=period).items()


def _moment(option: str, given: datetime | int | None) -> Moment | None:
    if given is None:
        return None
    if isinstance(given, int):
        return Moment(zxid=given)
    if not isinstance(given, datetime) or given.tzinfo is None:
        raise InvalidOptionError(option, str(given), "it must be a datetime with a time zone, or a transaction")
    return Moment(time_ms=to_ms(given))
