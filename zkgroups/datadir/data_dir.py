"""A server's data directory, read at one moment: the newest snapshot that is whole, and all transactions after it.

What is read is a whole state that the server was in, or it is an error. A snapshot that is not whole is passed over for
the one before it, as long as the logs reach back to that one; a log that ends in the midst of a record ends with the
one before it. Both are said. A log in which something is missing or damaged is an error, which says up to which
transaction all is well: one may ask for that. Since ZooKeeper 3.6 the result is also compared with the digest of the
tree, which the server wrote down with each transaction.

Of a member of an ensemble, the last transactions may be some that nobody agreed to: the member with the highest zxid is
the one to read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from ..core.znodes.paths import CONSUMERS, Part
from ..exceptions import DamagedDataError, NotFoundError
from ..zookeeper.reading.tree_walk import PartDirectory, TopicFilter, all_topics
from ..zookeeper.requests.bulk_read import Block
from .changes import STAT, Changes
from .files import COUNTER, DataFile, DataFiles, data_files, is_first
from .groups import Groups
from .log_file import Log
from .scan import Scan
from .snapshot_file import END_OF_NODES, HEADER, Whole, chunks, examine


@dataclass(frozen=True, slots=True)
class State:
    """Of which moment a state is: after which transaction, and made from which snapshot; None where from nothing.

    `notes` say what was passed over to find it.
    """

    zxid: int
    snapshot: str | None
    notes: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class DataDir:
    """A data directory, and the part of the tree in it that has the groups."""

    folder: str
    _: KW_ONLY
    log_folder: str | None = None
    chroot: str = ""

    def __str__(self) -> str:
        return self.folder + self.chroot

    def state(self, zxid: int | None = None) -> State:
        """The newest state, or the one after that transaction.

        Where the files are damaged, the error names the last one before that which may be asked for.
        """
        try:
            return self._state(zxid)
        except DamagedDataError as error:
            raise DamagedDataError(error.path, error.reason, last_zxid=self._last_state(error.last_zxid)) from error

    def _last_state(self, zxid: int | None) -> int | None:
        """The last one up to there that can be had: it may need what is damaged, too, if a snapshot reaches beyond."""
        while zxid is not None:
            try:
                return self._state(zxid).zxid
            except NotFoundError:
                return None
            except DamagedDataError as error:
                before = error.last_zxid
                zxid = before if before is not None and before < zxid else None
        return None

    def _state(self, zxid: int | None) -> State:
        with _readable(self.folder):
            files = data_files(self.folder, self.log_folder)
            notes: list[str] = []
            base = _base(files, zxid, notes)
            if base is not None and not files.logs and zxid is None:
                reason = f"{self.folder} has no log that goes with {base.path.name}"
                raise NotFoundError(f"{reason}: if the server had a dataLogDir, name it, too")
            log = _log(files, base, zxid)
            for _transaction in log:
                pass
            _check_leaders(files, log)
        if zxid is not None and log.zxid < zxid and not log.goes_on:
            reason = f"{self.folder} ends with the transaction 0x{log.zxid:x}, before 0x{zxid:x}"
            raise NotFoundError("; ".join([reason, *_not_sure(files, log.zxid, zxid)]))
        if log.torn is not None and not log.goes_on:
            notes.append(f"{log.torn} ends in the midst of a record: the last whole transaction is 0x{log.zxid:x}")
        newest = max((file.zxid for file in files.snapshots if file.zxid & COUNTER), default=0)
        reached = max([log.reached, *(file.zxid - 1 for file in files.logs)])
        if zxid is None and newest > reached:
            notes.append(
                f"the logs end with 0x{reached:x}, and a snapshot is of 0x{newest:x}: what came after it may be in "
                "logs elsewhere (dataLogDir)"
            )
        return State(log.zxid, base.path.name if base else None, tuple(notes))

    def groups(
        self,
        state: State,
        parts: Collection[Part],
        has_group: Callable[[str], bool] = lambda _group: True,
        wanted: TopicFilter = all_topics,
    ) -> Reading:
        """The groups in that state, with the nodes in these parts of them."""
        return Reading(self, state, parts, has_group, wanted)


def _base(files: DataFiles, zxid: int | None, notes: list[str]) -> DataFile | None:
    """The newest snapshot to begin from: whole, and with nothing in it that is later than what is asked for."""
    for snapshot in files.snapshots:
        if zxid is not None and snapshot.zxid > zxid:
            continue
        if (whole := examine(snapshot)) is None:
            notes.append(f"{snapshot.path} is not whole and was passed over")
        elif zxid is None or _is_within(files, whole, zxid):
            return snapshot
    if files.logs and is_first(files.logs[0].zxid):
        return None
    first = f"its logs begin with 0x{files.logs[0].zxid:x}" if files.logs else "it has no logs"
    if zxid is not None and not notes:
        why = [*_not_sure(files, -1, zxid), "no snapshot is as old"][0]
        raise NotFoundError(f"{files.folder} does not go back to 0x{zxid:x}: {why}, and {first}")
    reason = "; ".join([*notes, first]) if notes else f"it has no snapshot, and {first}"
    raise DamagedDataError(str(files.folder), f"there is nothing to begin from: {reason}")


def _not_sure(files: DataFiles, after: int, zxid: int) -> list[str]:
    """Of the newest snapshot between these two, where there is one: why it was not begun from."""
    between = [file for file in files.snapshots if after < file.zxid <= zxid]
    return [f"{file.path.name} may have later changes in it" for file in between[:1]]


def _log(files: DataFiles, base: DataFile | None, until: int | None = None) -> Log:
    """The transactions after a snapshot, or all."""
    return Log(files.logs_after(base.zxid if base else 0), base.zxid if base else None, until)


def _check_leaders(files: DataFiles, log: Log) -> None:
    """What a leader did last may be missing where another one began; a snapshot of that time proves that it is."""
    for before, after in log.leaders:
        for snapshot in files.snapshots:
            if before < snapshot.zxid < after and snapshot.zxid & COUNTER:  # a new leader begins with 0
                reason = f"the logs go from 0x{before:x} to 0x{after:x}, and {snapshot.path.name} is of between"
                raise DamagedDataError(files.folder, reason, last_zxid=before)


def _is_within(files: DataFiles, whole: Whole, zxid: int) -> bool:
    """Whether nothing in it is later.

    A server makes one change after the other, and says of each that it is done: what a snapshot has of a change that
    was not, is of the next one.
    """
    if whole.digest is not None and whole.digest.zxid != zxid:
        return whole.digest.zxid < zxid
    scan = Scan(chunks(whole.file.path), Changes(), _NONE, digest=False)
    for _run in scan.runs():
        pass
    return scan.newest <= zxid and (whole.digest is not None or _nothing_went(files, whole.file, zxid))


def _nothing_went(files: DataFiles, snapshot: DataFile, zxid: int) -> bool:
    """Whether no node was taken away after that while the snapshot was written, which would leave no trace in it.

    A server writes one snapshot after the other: when the next was begun, this one was done.
    """
    done = min((each.zxid for each in files.snapshots if each.zxid > snapshot.zxid), default=None)
    if done is not None and done <= zxid:
        return True
    log = _log(files, snapshot, done)
    try:
        for transaction in log:
            if transaction.zxid > zxid:
                changes = Changes()
                changes.apply(transaction)
                if changes.takes_away:
                    return False
    except DamagedDataError:
        return False
    return log.reached >= zxid


_NONE: Final = b"\0"
"""Below it there is nothing."""


class Reading:
    """One way through the files; what they have is true when all blocks have come: until then it may be an error."""

    def __init__(
        self,
        data: DataDir,
        state: State,
        parts: Collection[Part],
        has_group: Callable[[str], bool],
        wanted: TopicFilter,
    ) -> None:
        self.groups: list[str] = []
        """The names of the groups that are wanted, when all blocks have come."""
        self._data = data
        self._state = state
        self._parts = parts
        self._has_group = has_group
        self._wanted = wanted

    def blocks(self) -> Iterator[Block[PartDirectory]]:
        """The nodes, group by group, the owners of each before its offsets."""
        with _readable(self._data.folder):
            files = data_files(self._data.folder, self._data.log_folder)
            base = self._base(files)
            changes = self._changes(files, base)
            found = chunks(base.file.path) if base else iter([_EMPTY])
            expected = self._expected_digest(base, changes)
            root = f"{self._data.chroot}{CONSUMERS}".encode()
            scan = Scan(found, changes, root, digest=expected is not None)
            groups = Groups(scan, changes, root, self._parts, self._has_group, self._wanted)
            yield from groups.blocks()
        self._check(scan, expected)
        if self._data.chroot and not scan.has_above:
            raise NotFoundError(f"there is no {self._data.chroot} in {self._data.folder}, or nothing below it")
        self.groups = groups.names

    def _base(self, files: DataFiles) -> Whole | None:
        if self._state.snapshot is None:
            return None
        named = (file for file in files.snapshots if file.path.name == self._state.snapshot)
        whole = next((whole for file in named if (whole := examine(file)) is not None), None)
        if whole is None:
            raise DamagedDataError(self._state.snapshot, "it was whole before, and is not any more")
        return whole

    def _changes(self, files: DataFiles, base: Whole | None) -> Changes:
        log = _log(files, base.file if base else None, self._state.zxid)
        changes = Changes()
        for transaction in log:
            changes.apply(transaction)
        if log.zxid != self._state.zxid:
            raise DamagedDataError(
                self._data.folder, f"it went to 0x{self._state.zxid:x} before, and does not any more"
            )
        changes.finish()
        return changes

    def _expected_digest(self, base: Whole | None, changes: Changes) -> int | None:
        """What the server wrote down for this state; None where it did not."""
        found = base.digest if base else None
        if found is not None and found.zxid > self._state.zxid:
            raise _too_new(self._state, found.zxid)
        if changes.digest is not None:
            return None if changes.unlisted else changes.digest
        return found.value if found is not None and found.zxid == self._state.zxid else None

    def _check(self, scan: Scan, expected: int | None) -> None:
        zxid = self._state.zxid
        if scan.newest > zxid:
            raise _too_new(self._state, scan.newest)
        if expected is not None and scan.digest % 2**64 != expected:
            reason = f"what was read is not the tree that the server had at 0x{zxid:x}: their digests differ"
            raise DamagedDataError(self._data.folder, reason)


def _too_new(state: State, zxid: int) -> DamagedDataError:
    reason = f"it reaches to 0x{zxid:x}, and the logs end with 0x{state.zxid:x}"
    return DamagedDataError(str(state.snapshot), reason)


@contextmanager
def _readable(folder: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NotFoundError(f"{error.filename or folder} cannot be read: {error.strerror or error}") from error


def _node(path: bytes) -> bytes:
    """One that is there from the beginning."""
    return len(path).to_bytes(4) + path + bytes(4 + 8 + STAT.size)


_EMPTY: Final = HEADER + bytes(8 + 4 + 4) + _node(b"") + _node(b"/zookeeper") + END_OF_NODES
"""What a server begins with, as a snapshot; what it keeps below for itself does not matter."""
