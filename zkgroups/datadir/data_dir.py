"""Read a consistent state from a server's data directory: its latest intact snapshot, and the transactions after it.

The result is a state that the server really had, or an error. A damaged snapshot is skipped if the logs reach back to
an earlier one. A log that ends within a record is read up to the record before. Both are reported as notes. A log with
missing or damaged records is an error, which names the last readable transaction. Since ZooKeeper 3.6 the result is
also compared with the digest of the tree that the server logged.

The last transactions of one ensemble member may never have been committed by a quorum. Read the member with the highest
zxid.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from ..core.layouts.layout import Layout, LayoutNode
from ..core.znodes.paths import CONSUMERS, Part
from ..exceptions import DamagedDataError, InvalidOptionError, NotFoundError
from ..zookeeper.reading.tree_walk import PartDirectory, TopicFilter, all_topics
from ..zookeeper.requests.bulk_read import Block
from .files import (
    COUNTER,
    END_OF_NODES,
    HEADER,
    DataFile,
    DataFiles,
    IntactSnapshot,
    check_snapshot,
    data_files,
    is_first,
    read_chunks,
    readable,
)
from .nodes import GroupScanner, LayoutScanner, scanned_root
from .scan import STAT, ReplayedChanges, SnapshotScan
from .transaction_log import TransactionLog

_CHROOT: Final = re.compile("(/[^/]+)*")


@dataclass(frozen=True, slots=True)
class DataDirState:
    """A state: its zxid, and the snapshot that it is based on (None if it is read from the logs only).

    `notes` describe the files that were skipped.
    """

    zxid: int
    snapshot: str | None
    notes: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class DataDir:
    """A data directory, and the chroot of the groups in it."""

    folder: str
    _: KW_ONLY
    log_folder: str | None = None
    chroot: str = ""

    def __post_init__(self) -> None:
        if not _CHROOT.fullmatch(self.chroot):
            raise InvalidOptionError("chroot", self.chroot, "it must be a path such as /kafka")

    def __str__(self) -> str:
        return self.folder + self.chroot

    def state(self, zxid: int | None = None) -> DataDirState:
        """Find the latest state, or the one after the transaction `zxid`.

        If the files are damaged, the error contains the zxid of the last readable state.
        """
        try:
            return self._state(zxid)
        except DamagedDataError as error:
            raise DamagedDataError(error.path, error.reason, last_zxid=self._last_state(error.last_zxid)) from error

    def _last_state(self, zxid: int | None) -> int | None:
        """Return the zxid of the last readable state up to `zxid`.

        A state before the damage may be unreadable, too, if its snapshot contains later changes.
        """
        while zxid is not None:
            try:
                return self._state(zxid).zxid
            except NotFoundError:
                return None
            except DamagedDataError as error:
                before = error.last_zxid
                zxid = before if before is not None and before < zxid else None
        return None

    def _state(self, zxid: int | None) -> DataDirState:
        with readable(self.folder):
            files = data_files(self.folder, self.log_folder)
            notes: list[str] = []
            base = _base(files, zxid, notes)
            if base is not None and not files.logs and zxid is None:
                reason = f"{self.folder} has no log for {base.path.name}"
                raise NotFoundError(f"{reason}: if the server has a dataLogDir, give it, too")
            log = _log(files, base, zxid)
            for _transaction in log:
                pass
            _check_leaders(files, log)
        if zxid is not None and log.zxid < zxid and not log.has_more:
            reason = f"{self.folder} ends with transaction 0x{log.zxid:x}, before 0x{zxid:x}"
            raise NotFoundError("; ".join([reason, *_unusable_snapshot(files, log.zxid, zxid)]))
        if log.torn is not None and not log.has_more:
            notes.append(f"{log.torn} ends within a record: the last complete transaction is 0x{log.zxid:x}")
        newest = max((file.zxid for file in files.snapshots if file.zxid & COUNTER), default=0)
        reached = max([log.reached, *(file.zxid - 1 for file in files.logs)])
        if zxid is None and newest > reached:
            notes.append(
                f"the logs end with 0x{reached:x}, before the snapshot of 0x{newest:x}: later transactions may be in a "
                "separate dataLogDir"
            )
        return DataDirState(log.zxid, base.path.name if base else None, tuple(notes))

    def groups(
        self,
        state: DataDirState,
        parts: Collection[Part],
        has_group: Callable[[str], bool] = lambda _group: True,
        wanted: TopicFilter = all_topics,
    ) -> DataDirReading:
        """Return a reader of the groups in that state, for the nodes in these parts."""
        return DataDirReading(self, state, parts, has_group, wanted)

    def layout_nodes(
        self, state: DataDirState, layout: Layout, has_group: Callable[[str], bool] = lambda _group: True
    ) -> dict[str, list[LayoutNode]]:
        """Return the nodes of all selected groups of a layout in that state."""
        reading = _StateReading(self, state)
        with reading.scan(scanned_root(layout)) as (scan, changes):
            return LayoutScanner(scan, changes, self.chroot, layout, has_group).nodes()


def _base(files: DataFiles, zxid: int | None, notes: list[str]) -> DataFile | None:
    """Find the latest snapshot that is intact and contains no change after `zxid`; None to start from the logs."""
    for snapshot in files.snapshots:
        if zxid is not None and snapshot.zxid > zxid:
            continue
        if (whole := check_snapshot(snapshot)) is None:
            notes.append(f"{snapshot.path} is damaged and was skipped")
        elif zxid is None or _is_within(files, whole, zxid):
            return snapshot
    if files.logs and is_first(files.logs[0].zxid):
        return None
    first = f"its logs begin with 0x{files.logs[0].zxid:x}" if files.logs else "it has no logs"
    if zxid is not None and not notes:
        why = [*_unusable_snapshot(files, -1, zxid), "it has no snapshot that old"][0]
        raise NotFoundError(f"{files.folder} does not go back to 0x{zxid:x}: {why}, and {first}")
    reason = "; ".join([*notes, first]) if notes else first
    raise DamagedDataError(str(files.folder), f"it has no snapshot to start from: {reason}")


def _unusable_snapshot(files: DataFiles, after: int, zxid: int) -> list[str]:
    """Explain why the latest snapshot between `after` and `zxid`, if any, cannot be used."""
    between = [file for file in files.snapshots if after < file.zxid <= zxid]
    return [f"{file.path.name} may contain later changes" for file in between[:1]]


def _log(files: DataFiles, base: DataFile | None, until: int | None = None) -> TransactionLog:
    """Return the transactions after a snapshot; all, if there is none."""
    return TransactionLog(files.logs_after(base.zxid if base else 0), base.zxid if base else None, until)


def _check_leaders(files: DataFiles, log: TransactionLog) -> None:
    """Raise DamagedDataError if a snapshot proves that the last transactions of a leader are missing."""
    for before, after in log.leaders:
        for snapshot in files.snapshots:
            if before < snapshot.zxid < after and snapshot.zxid & COUNTER:  # a new leader starts with 0
                reason = f"the logs go from 0x{before:x} to 0x{after:x}, but {snapshot.path.name} is from in between"
                raise DamagedDataError(files.folder, reason, last_zxid=before)


def _is_within(files: DataFiles, whole: IntactSnapshot, zxid: int) -> bool:
    """Return whether the snapshot contains no change after `zxid`.

    The digest in a snapshot tells its exact zxid. Without it, look for newer nodes, and exclude deletions.
    """
    if whole.digest is not None and whole.digest.zxid != zxid:
        return whole.digest.zxid < zxid
    file = whole.file.path
    scan = SnapshotScan(read_chunks(file), ReplayedChanges(), _NO_ROOT, file=str(file), digest=False)
    for _run in scan.runs():
        pass
    return scan.newest <= zxid and (whole.digest is not None or _has_no_later_deletion(files, whole.file, zxid))


def _has_no_later_deletion(files: DataFiles, snapshot: DataFile, zxid: int) -> bool:
    """Return whether no node was deleted after `zxid` while the snapshot was written: that would leave no trace.

    A server writes one snapshot at a time, so the snapshot was complete when the next one started.
    """
    done = min((each.zxid for each in files.snapshots if each.zxid > snapshot.zxid), default=None)
    if done is not None and done <= zxid:
        return True
    log = _log(files, snapshot, done)
    try:
        for transaction in log:
            if transaction.zxid > zxid:
                changes = ReplayedChanges()
                changes.apply(transaction)
                if changes.may_delete:
                    return False
    except DamagedDataError:
        return False
    return log.reached >= zxid


_NO_ROOT: Final = b"\0"
"""A root without any nodes below it."""


class _StateReading:
    """One pass through the files. The data is verified only at its end, which may be an error."""

    def __init__(self, data: DataDir, state: DataDirState) -> None:
        self._data = data
        self._state = state

    @contextmanager
    def scan(self, path: str) -> Iterator[tuple[SnapshotScan, ReplayedChanges]]:
        """Yield a scan of the nodes below a path, and the changes to apply. The block must consume both."""
        with readable(self._data.folder):
            files = data_files(self._data.folder, self._data.log_folder)
            base = self._base(files)
            changes = self._changes(files, base)
            found = read_chunks(base.file.path) if base else iter([_EMPTY_TREE])
            file = str(base.file.path) if base else self._data.folder
            expected = self._expected_digest(base, changes, file)
            chroot = self._data.chroot
            root = f"{chroot}{path}".rstrip("/").encode()
            scan = SnapshotScan(found, changes, root, file=file, digest=expected is not None, chroot=chroot.encode())
            yield scan, changes
        self._check(scan, expected)
        if chroot and not scan.has_above:
            raise NotFoundError(f"{self._data.folder} has no nodes below the chroot {chroot}: correct it")

    def _base(self, files: DataFiles) -> IntactSnapshot | None:
        if self._state.snapshot is None:
            return None
        named = (file for file in files.snapshots if file.path.name == self._state.snapshot)
        whole = next((whole for file in named if (whole := check_snapshot(file)) is not None), None)
        if whole is None:
            raise DamagedDataError(self._data.folder, f"{self._state.snapshot} changed while it was read")
        return whole

    def _changes(self, files: DataFiles, base: IntactSnapshot | None) -> ReplayedChanges:
        log = _log(files, base.file if base else None, self._state.zxid)
        changes = ReplayedChanges()
        for transaction in log:
            changes.apply(transaction)
        if log.zxid != self._state.zxid:
            raise DamagedDataError(
                self._data.folder, f"its logs no longer reach 0x{self._state.zxid:x}: they changed while they were read"
            )
        changes.finish()
        return changes

    def _expected_digest(self, base: IntactSnapshot | None, changes: ReplayedChanges, file: str) -> int | None:
        """Return the digest that the server logged for this state, if any."""
        found = base.digest if base else None
        if found is not None and found.zxid > self._state.zxid:
            raise _too_new(file, found.zxid, self._state)
        if changes.digest is not None:
            return None if changes.unlisted else changes.digest
        return found.value if found is not None and found.zxid == self._state.zxid else None

    def _check(self, scan: SnapshotScan, expected: int | None) -> None:
        zxid = self._state.zxid
        if scan.newest > zxid:
            raise _too_new(scan.file, scan.newest, self._state)
        if expected is not None and scan.digest % 2**64 != expected:
            reason = f"the tree differs from the server's tree at 0x{zxid:x}: their digests differ"
            raise DamagedDataError(self._data.folder, reason)


class DataDirReading(_StateReading):
    """One pass through the files. The data is verified only after the last block: iteration may end with an error."""

    def __init__(
        self,
        data: DataDir,
        state: DataDirState,
        parts: Collection[Part],
        has_group: Callable[[str], bool],
        wanted: TopicFilter,
    ) -> None:
        super().__init__(data, state)
        self.groups: list[str] = []
        """The names of the selected groups, complete after the last block."""
        self._parts = parts
        self._has_group = has_group
        self._wanted = wanted

    def blocks(self) -> Iterator[Block[PartDirectory]]:
        """Yield the nodes group by group, with the owners of each group before its offsets."""
        with self.scan(CONSUMERS) as (scan, changes):
            root = f"{self._data.chroot}{CONSUMERS}".encode()
            groups = GroupScanner(scan, changes, root, self._parts, self._has_group, self._wanted)
            yield from groups.blocks()
        self.groups = groups.names


def _too_new(file: str, zxid: int, state: DataDirState) -> DamagedDataError:
    reason = f"it contains changes up to 0x{zxid:x}, but the logs end with 0x{state.zxid:x}"
    return DamagedDataError(file, reason)


def _encode_node(path: bytes) -> bytes:
    """Encode a node of an empty tree."""
    return len(path).to_bytes(4) + path + bytes(4 + 8 + STAT.size)


_EMPTY_TREE: Final = HEADER + bytes(8 + 4 + 4) + _encode_node(b"") + _encode_node(b"/zookeeper") + END_OF_NODES
"""A snapshot of an empty tree, without the server's own nodes."""
