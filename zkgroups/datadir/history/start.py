"""Find out which nodes existed where a reading of logs begins.

A server begins a new log whenever it writes a snapshot, and deletes old logs and snapshots together. So the first log
that is left usually begins long before the first snapshot. A later snapshot shows earlier nodes, too: a node existed at
a transaction if it was created until then, and its data is known if it was not written since. Nodes that were deleted
in between are missing. The history is complete once the snapshot is.

A snapshot is written while the tree changes, so it is complete at an unknown transaction after the one in its name. Its
digest tells which one. Without a digest, it was complete when the next snapshot was begun, because a server writes one
at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ...core.history.changes import KnownNode
from ...core.history.known_groups import NEVER
from ...core.znodes.paths import CONSUMERS, Part
from ..files import DataFile, DataFiles, is_first
from ..replayed_changes import STAT, ReplayedChanges
from ..scan import SnapshotScan
from ..snapshot_file import IntactSnapshot, check_snapshot, read_chunks

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
