"""Read the history of groups from the logs of a server, from one transaction to the next.

Missing transactions are reported as a `LogGap` in their place, and never skipped silently. The reader then forgets all
nodes, and begins again with the nodes of a later snapshot.

A part of the logs can be read by itself. The state at its beginning comes from a snapshot that was complete by then,
and from the logs since: they are read, too, but their events are left out. So the parts have exactly the events that
one reader of all logs finds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from ...core.history.events import HistoryEvent
from ...core.history.known_groups import NEVER
from ...core.history.period import ALWAYS, Period
from ...core.history.tracker import GroupsTracker
from ...core.times import utc
from ...exceptions import DamagedDataError, NotFoundError
from ..data_dir import DataDir
from ..files import COUNTER, COUNTER_BITS, DataFile, DataFiles, follows, readable
from ..log_file import LogFile
from ..transaction_format import HEAD, SET_DATA
from .gaps import GapReason, LogGap
from .node_changes import ChangeDecoder, UnreadableTransaction
from .parts import LogPart, first_record, history_files, logs_of_period
from .start import Start, exact_start_before, start_before

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

    # Gaps

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
