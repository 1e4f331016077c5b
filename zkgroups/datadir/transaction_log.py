"""Read the transaction logs of a server as one series, without gaps, up to the last complete transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ..exceptions import DamagedDataError
from .files import COUNTER_BITS, DataFile, follows, is_first
from .log_file import LogFile
from .transaction_format import HEAD


class Transaction(NamedTuple):
    """The session, zxid, time and type of a transaction, the whole record, which begins with them, and its file."""

    session: int
    zxid: int
    time_ms: int
    kind: int
    record: bytes
    log: Path


@dataclass(slots=True)
class TransactionLog:
    """Iterates over the transactions after a zxid, in order; raises DamagedDataError for a gap or a damaged record.

    The iteration ends with `until`, or with the last complete transaction. Afterwards `zxid` is the last transaction,
    `reached` the last one including skipped ones, `has_more` tells whether a later one exists, `leaders` holds the
    zxids before and after each change of leader, and `torn` is the last file if it ends within a record.
    """

    files: Sequence[DataFile]
    after: int | None
    """The zxid of the snapshot; None to read all transactions."""
    until: int | None = None
    zxid: int = field(init=False)
    reached: int = field(init=False, default=0)
    leaders: list[tuple[int, int]] = field(init=False, default_factory=list)
    has_more: bool = field(init=False, default=False)
    torn: Path | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.zxid = self.after or 0

    def __iter__(self) -> Iterator[Transaction]:
        for file in self.files:
            if self.zxid == self.until:  # later records may be damaged
                return
            self.torn = None
            records = LogFile(file.path, self.zxid)
            for record in records:
                session, _request, zxid, time_ms, kind = HEAD.unpack_from(record)
                self.reached = max(self.reached, zxid)
                if self.after is not None and zxid <= self.after == self.zxid:
                    continue
                self._check_follows(zxid, file.path)
                if zxid >> COUNTER_BITS > self.zxid >> COUNTER_BITS:
                    self.leaders.append((self.zxid, zxid))
                if self.until is not None and zxid > self.until:
                    self.has_more = True
                    return
                self.zxid = zxid
                yield Transaction(session, zxid, time_ms, kind, record, file.path)
                if self.zxid == self.until:
                    return
            self.torn = file.path if records.torn else None

    def _check_follows(self, zxid: int, path: Path) -> None:
        """Raise DamagedDataError for a gap. Without a snapshot, the logs must start with the first transaction ever."""
        if follows(self.zxid, zxid) and (self.after is not None or self.zxid or is_first(zxid)):
            return
        reason = f"0x{zxid:x} follows 0x{self.zxid:x}: transactions are missing or out of order"
        raise DamagedDataError(str(path), reason, last_zxid=self.zxid)
