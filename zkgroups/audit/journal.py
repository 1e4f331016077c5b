"""The files of an audit.

    DEST/_audit.json                     the groups, topics and layout, and the ZooKeeper: see `AuditDescription`
    DEST/_position.json                  the last finished batch: see `FinishedBatch`
    DEST/_lock                           locked by the running audit
    DEST/batches/<batch>                 created by the run that records this batch
    DEST/commits/<level>-<first>-<last>/ commits, from one batch to another: see `journal.py`
    DEST/standing/<batch>/               the last commit of each partition, after a batch

The folders below `commits` and `standing` appear completely or not at all: see `zkgroups/storage/atomic_folder.py`.

Each batch with commits adds a piece of level 0. `MERGE_FACTOR` pieces of one level are merged into one of the next
level, so there are never many. The merged pieces stay until the next merge, for current readers, but are ignored: a
piece within another one is a duplicate. When pieces of level 0 are merged, `standing` is written, too. So the previous
offset of a commit is found there or in the few pieces since.

A batch is finished once `_position.json` names it. If a run is killed before, the next batch starts at the same
position, and skips the commits that are already recorded. So the position only saves work: without it, a batch reads
everything again, and records the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from typing import Any, Final, Self, TypeGuard

import pyarrow as pa
import pyarrow.compute as pc

from ..core.ensemble_position import EnsemblePosition
from ..core.layouts.legacy import LEGACY
from ..core.table_columns import COMMITS as COMMIT_COLUMNS
from ..core.table_columns import STANDING as STANDING_COLUMNS
from ..core.table_columns import TableColumn
from ..core.times import utc
from ..core.znodes.topic_partition import is_group
from ..exceptions import ConflictError, DamagedFileError, NotFoundError, RefusedError
from ..storage.atomic_folder import UNFINISHED, AtomicFolder, write_list
from ..storage.files import LocalFiles, join
from ..storage.snapshot_folder import FIELDS, decode_position, encode_position
from ..tables.arrow import arrow_schema
from ..tables.parquet_files import FILE_NAME, arrow_errors, parquet_writer, read_row_groups

# The ZooKeeper ensemble that an audit follows.


@dataclass(frozen=True, slots=True)
class FollowedEnsemble:
    """The name of the ensemble, and its position when the audit began.

    >>> followed = FollowedEnsemble("zk1:2181", EnsemblePosition(zxid=100, created_zxid=7, created_ms=1_000))
    >>> now = EnsemblePosition(zxid=200, created_zxid=7, created_ms=1_000)
    >>> followed.is_same("zk1:2181", now), followed.is_same("zk1:2181,zk2:2181", now), followed.is_same("zk9:2181", now)
    (True, True, True)
    >>> another = EnsemblePosition(zxid=200, created_zxid=150, created_ms=2_000)
    >>> followed.is_same("zk1:2181", another), followed.is_same("zk9:2181", another)
    (True, False)
    """

    cluster: str
    position: EnsemblePosition

    def is_same(self, cluster: str | None, now: EnsemblePosition) -> bool:
        """Return whether a ZooKeeper with this name and position is the followed ensemble.

        The creation of the `/consumers` node identifies an ensemble. If that node was missing or has been recreated,
        the names must be equal, too.
        """
        made = (now.created_zxid, now.created_ms)
        if now.created_zxid and made == (self.position.created_zxid, self.position.created_ms):
            return True
        return cluster == self.cluster and self.position.may_precede(now)

    def updated(self, now: EnsemblePosition) -> FollowedEnsemble:
        """Identify the ensemble by the current `/consumers` node."""
        if not now.created_zxid:
            return self
        return replace(self, position=replace(self.position, created_zxid=now.created_zxid, created_ms=now.created_ms))


# The folders of an audit's commits, and which of them count.


MERGE_FACTOR: Final = 16
"""The number of pieces to merge. A million batches then make at most 60 pieces."""

_NAME: Final = re.compile("([0-9]+)-([0-9]{12})-([0-9]{12})")


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """The commits of some batches, from the first to the last."""

    first: int
    last: int
    level: int = 0

    @property
    def name(self) -> str:
        """The name of the folder that holds the piece: its level, its first and its last batch.

        >>> Piece(0, 15, level=1).name
        '1-000000000000-000000000015'
        """
        return f"{self.level}-{self.first:012d}-{self.last:012d}"

    @classmethod
    def named(cls, name: str) -> Piece | None:
        """Return the piece of this name; None for other names."""
        match = _NAME.fullmatch(name)
        return None if match is None else cls(int(match[2]), int(match[3]), int(match[1]))

    def has(self, other: Piece) -> bool:
        """Return whether another piece was merged into this one."""
        return self.level > other.level and self.first <= other.first and other.last <= self.last


def outermost(pieces: Iterable[Piece]) -> list[Piece]:
    """Return the pieces that no other piece contains, sorted.

    >>> outermost([Piece(0, 3, level=1), Piece(0, 0), Piece(2, 2), Piece(4, 4)])
    [Piece(first=0, last=3, level=1), Piece(first=4, last=4, level=0)]
    """
    found = sorted(pieces)
    return [piece for piece in found if not any(other.has(piece) for other in found)]


# The two small files of an audit: its description, and its last finished batch.


_BATCHES: Final = 10**12
"""The limit of the numbers of batches, which have twelve digits in names of files."""


@dataclass(frozen=True, slots=True)
class AuditDescription:
    """What an audit records.

    - `groups`, `topics`: the expressions that select them; None for all.
    - `ensemble`: the ZooKeeper that it follows; None if it was killed before it connected.
    - `first_batch`: the first batch of this ZooKeeper. Earlier ones are of the ZooKeeper before.
    - `layout`: where the offsets are, as text.
    """

    groups: str | None
    topics: str | None
    ensemble: FollowedEnsemble | None = None
    first_batch: int = 0
    layout: str = LEGACY.text

    @property
    def selection(self) -> str:
        """The groups, topics and layout, for messages."""
        layout = "" if self.layout == LEGACY.text else f", layout {self.layout}"
        return f"groups {self.groups or '.*'}, topics {self.topics or '.*'}{layout}"

    def following(self, ensemble: FollowedEnsemble, *, first_batch: int | None = None) -> AuditDescription:
        """Return the description with another ensemble."""
        return replace(self, ensemble=ensemble, first_batch=self.first_batch if first_batch is None else first_batch)

    def to_json(self) -> str:
        fields: dict[str, Any] = {"groups": self.groups, "topics": self.topics, "layout": self.layout}
        fields["first_batch"] = self.first_batch
        if self.ensemble is not None:
            fields |= {"cluster": self.ensemble.cluster} | encode_position(self.ensemble.position)
        return json.dumps(fields)

    @classmethod
    def from_json(cls, text: str) -> AuditDescription | None:
        """Decode a description; return None for another text.

        >>> AuditDescription.from_json(AuditDescription("bill.*", None).to_json())
        AuditDescription(groups='bill.*', topics=None, ensemble=None, first_batch=0, layout='legacy')
        """
        fields = _object(text)
        groups, topics, first = fields.get("groups", 0), fields.get("topics", 0), fields.get("first_batch")
        layout = fields.get("layout", LEGACY.text)
        if not (isinstance(groups, str | None) and isinstance(topics, str | None) and isinstance(layout, str)):
            return None
        if not _is_number(first, _BATCHES):
            return None
        if "cluster" not in fields:
            return cls(groups, topics, first_batch=first, layout=layout)
        cluster, position = fields["cluster"], _position(fields)
        if not isinstance(cluster, str) or position is None:
            return None
        return cls(groups, topics, FollowedEnsemble(cluster, position), first, layout)


@dataclass(frozen=True, slots=True)
class FinishedBatch:
    """A batch that is recorded completely.

    - `number`: its number.
    - `position`: the position of ZooKeeper when the batch began. The next batch starts there.
    - `read_ms`: the time when it began, by the clock of the reader. Later commits are unknown.
    - `forbidden`: the groups with forbidden nodes. The next batch reads all of their offsets.
    """

    number: int
    position: EnsemblePosition
    read_ms: int
    forbidden: tuple[str, ...] = ()

    def to_json(self) -> str:
        fields = {"batch": self.number, "read_ms": self.read_ms, "forbidden": self.forbidden}
        return json.dumps(fields | encode_position(self.position))

    @classmethod
    def from_json(cls, text: str) -> FinishedBatch | None:
        """Decode a batch; return None for another text.

        >>> batch = FinishedBatch(3, EnsemblePosition(100, 7, 1_000), 1_700_000_000_000, ("billing",))
        >>> FinishedBatch.from_json(batch.to_json()) == batch, FinishedBatch.from_json("{}")
        (True, None)
        """
        fields = _object(text)
        number, read_ms, forbidden = (fields.get(name) for name in ("batch", "read_ms", "forbidden"))
        position = _position(fields)
        if position is None or not (_is_number(number, _BATCHES) and _is_number(read_ms) and _are_groups(forbidden)):
            return None
        return cls(number, position, read_ms, tuple(forbidden))


def _object(text: str) -> dict[str, Any]:
    """Decode a JSON object; return an empty one for another text."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _position(fields: dict[str, Any]) -> EnsemblePosition | None:
    return decode_position(fields) if all(_is_number(fields.get(name)) for name in FIELDS) else None


def _is_number(value: object, limit: int = 2**63) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < limit


def _are_groups(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(group, str) and is_group(group) for group in value)


COMMITS: Final = "commits"
STANDING: Final = "standing"
BATCHES: Final = "batches"
DESCRIPTION: Final = "_audit.json"
POSITION: Final = "_position.json"
LOCK: Final = "_lock"

CURE: Final = "restore it from a backup, or start a new audit in another folder"

_BATCH: Final = re.compile("[0-9]{12}")


_ROWS_OF_A_FILE: Final = 1_000_000


class Journal(AtomicFolder):
    """The folder of one audit, with its rows as Arrow tables."""

    @classmethod
    def at(cls, destination: str) -> Self:
        """Return the journal of a folder of this machine."""
        return cls(LocalFiles(), destination)

    def commits(
        self,
        piece: Piece,
        columns: Sequence[TableColumn] = COMMIT_COLUMNS,
        *,
        groups: Collection[str] | None = None,
        latest_first: bool = False,
    ) -> Iterator[Any]:
        """Yield these columns of the commits of a piece, of these groups or of all, some rows at a time.

        A piece may hold nearly the whole audit. Its files are checked first.
        """
        files = self.files_of(COMMITS, piece.name)
        with arrow_errors(f"{self} cannot be read"):
            for file in reversed(files) if latest_first else files:
                yield from read_row_groups(self._files, file, columns, groups=groups, latest_first=latest_first)

    def count(self) -> int:
        """Return the number of recorded commits, from the lists of files."""
        lists = [self.check_files(COMMITS, piece.name, cure=CURE) for piece in self.pieces()]
        return sum(each.rows for each in lists if each is not None)

    def known(self, first: int) -> Iterator[Any]:
        """Yield the last commits of all partitions, latest first, without those before the batch `first`.

        A partition may be in several of these tables. In each, its later rows come first.
        """
        for names in self.known_folders():
            files = self.files_of(*names)
            with arrow_errors(f"{self} cannot be read"):
                found = pa.concat_tables(
                    [
                        arrow_schema(STANDING_COLUMNS).empty_table(),
                        *(rows for file in files for rows in read_row_groups(self._files, file, STANDING_COLUMNS)),
                    ]
                )
            found = found.filter(pc.greater_equal(found.column("batch"), first))
            yield found.sort_by([("batch", "descending")])

    def files_of(self, *names: str) -> list[str]:
        """Check a complete folder, and return its files."""
        self.check_files(*names, cure=CURE)
        return [self.path(*names, file) for file in sorted(self.file_lengths(*names))]

    def write_commits(self, tables: Iterable[Any], piece: Piece) -> None:
        """Add a piece."""
        with self.new_piece(piece) as path:
            self._write(path, COMMIT_COLUMNS, tables)

    def write_standing(self, rows: Any, batch: int) -> None:
        """Add the last commit of each partition."""
        with self.new_standing(batch) as path:
            self._write(path, STANDING_COLUMNS, [rows])

    def merge(self, pieces: Sequence[Piece], into: Piece) -> None:
        """Copy the commits of pieces to another one, some at a time."""
        self.write_commits(chain.from_iterable(map(self.commits, pieces)), into)

    def _write(self, path: str, columns: Sequence[TableColumn], tables: Iterable[Any]) -> None:
        """Write tables to files of a new folder, and list them."""
        self._files.make_folder(path)
        rows = 0
        left = iter(tables)
        for number, table in enumerate(left):
            in_file = 0
            with parquet_writer(self._files, join(path, FILE_NAME.format(number)), columns) as file:
                for each in chain([table], left):
                    file.write_table(each)
                    in_file += len(each)
                    if in_file >= _ROWS_OF_A_FILE:
                        break
            rows += in_file
        write_list(self._files, path, rows)

    def pieces(self) -> list[Piece]:
        """Return the complete, outermost pieces, sorted."""
        return outermost(piece for piece in self._all_pieces() if self.is_complete(COMMITS, piece.name))

    def _all_pieces(self) -> list[Piece]:
        return [piece for name in self.children(COMMITS) if (piece := Piece.named(name)) is not None]

    @contextmanager
    def new_piece(self, piece: Piece) -> Iterator[str]:
        """Yield the path of a new folder, into which the block writes commits. Then add it as a piece."""
        with self._new_folder(COMMITS, piece.name) as path:
            yield path

    def delete_merged(self) -> None:
        """Delete the pieces that were merged into others."""
        current = set(self.pieces())
        for piece in self._all_pieces():
            if piece not in current:
                self._delete_folder(COMMITS, piece.name)

    def standing_batch(self) -> int | None:
        """Return the batch of the latest `standing`."""
        batches = sorted(self._batches(STANDING), reverse=True)
        return next((int(name) for name in batches if self.is_complete(STANDING, name)), None)

    @contextmanager
    def new_standing(self, batch: int) -> Iterator[str]:
        """Yield the path of a new folder for the last commit of each partition. Keep the previous one for readers."""
        before = self.standing_batch()
        with self._new_folder(*standing_names(batch)) as path:
            yield path
        for name in self._batches(STANDING):
            if int(name) not in (before, batch):
                self._delete_folder(STANDING, name)

    def known_folders(self) -> list[tuple[str, str]]:
        """Return the folders with the last commit of each partition, latest first: pieces, and the `standing`."""
        standing = self.standing_batch()
        since = [piece for piece in self.pieces() if standing is None or piece.last > standing]
        found = [(COMMITS, piece.name) for piece in reversed(since)]
        return found if standing is None else [*found, standing_names(standing)]

    @contextmanager
    def _new_folder(self, *names: str) -> Iterator[str]:
        with self.translated(f"{self.path(*names)} could not be written"), self.staging(datetime.now(UTC)) as path:
            yield path
            self.publish(path, *names)

    def _delete_folder(self, *names: str) -> None:
        with self.translated(f"{self} cannot be written to"):
            self.delete_folder(*names)

    def _batches(self, folder: str) -> list[str]:
        return list(filter(_BATCH.fullmatch, self.children(folder)))

    def claim_batch(self, previous: int | None) -> int:
        """Take the number of the next batch. `previous` is the one that this run took before.

        Raise ConflictError if another run has taken a number since. On an object store, nothing else detects it.
        """
        taken = self._batches(BATCHES)
        latest = max(map(int, taken), default=-1)
        if previous is not None and latest != previous:
            raise self.conflict()
        number = self._next_batch(latest)
        with self.translated(f"{self} cannot be written to"):
            try:
                self.write_text("", BATCHES, f"{number:012d}")
            except self.errors as error:
                if self.exists(BATCHES, f"{number:012d}"):
                    raise self.conflict() from error
                raise
            for name in taken:
                self.delete(BATCHES, name)
        return number

    def _next_batch(self, latest: int) -> int:
        finished = self.finished_batch()
        last = max((piece.last for piece in self._all_pieces()), default=-1)
        return 1 + max(latest, last, -1 if finished is None else finished.number)

    def finished_batch(self) -> FinishedBatch | None:
        """Return the last finished batch; None if there is none yet."""
        if not self.exists_replaceable(POSITION):
            return None
        found = FinishedBatch.from_json(self.read_replaceable(POSITION))
        if found is None:
            raise self._damaged(POSITION)
        return found

    def write_finished_batch(self, finished: FinishedBatch) -> None:
        """Record that a batch is finished."""
        with self.translated(f"{self} cannot be written to"):
            self.replace_text(finished.to_json(), POSITION)

    def check_has_read(self, at: datetime) -> None:
        """Raise RefusedError if the audit does not know all commits until this time."""
        finished = self.finished_batch()
        if finished is None:
            raise RefusedError(f"the audit in {self} has no finished batch yet: try again later")
        if at.timestamp() * 1000 > finished.read_ms:
            raise RefusedError(
                f"the audit in {self} last read offsets at {utc(finished.read_ms)} and does not know later commits: "
                "choose an earlier time"
            )

    # The audit

    def check_exists(self) -> None:
        """Raise NotFoundError if no audit was ever started here."""
        if not self.exists_replaceable(DESCRIPTION):
            self._refuse_without_description()
            raise NotFoundError(f"no audit in {self}: run `zkgroups audit` first")

    def begin(self, wanted: AuditDescription) -> None:
        """Start an audit of these groups, topics and layout, or check that the existing one has them; clean up."""
        with self.translated(f"{self} cannot be written to"):
            if self.exists_replaceable(DESCRIPTION):
                self._refuse_other_selection(wanted)
            else:
                self._refuse_without_description()
                self.replace_text(wanted.to_json(), DESCRIPTION)
            self.delete(UNFINISHED)

    def description(self) -> AuditDescription:
        """Return the groups, topics and layout of the audit, and its ZooKeeper."""
        found = AuditDescription.from_json(self.read_replaceable(DESCRIPTION))
        if found is None:
            raise self._damaged(DESCRIPTION)
        return found

    def save_ensemble(self, ensemble: FollowedEnsemble) -> None:
        """Record the ensemble that the audit follows."""
        self._save(self.description().following(ensemble))

    def start_over(self, ensemble: FollowedEnsemble) -> None:
        """Follow another ensemble. Commits of batches so far do not count as offsets of this one."""
        taken = max(map(int, self._batches(BATCHES)), default=-1)
        self._save(self.description().following(ensemble, first_batch=self._next_batch(taken)))

    def _save(self, description: AuditDescription) -> None:
        if description != self.description():
            with self.translated(f"{self} cannot be written to"):
                self.replace_text(description.to_json(), DESCRIPTION)

    def _refuse_other_selection(self, wanted: AuditDescription) -> None:
        known = self.description()
        if known.selection != wanted.selection:
            raise RefusedError(
                f"the audit in {self} is of {known.selection}, not of {wanted.selection}: choose the same ones, or "
                "another folder"
            )

    def _refuse_without_description(self) -> None:
        """Raise DamagedFileError if any batch was begun: the description is always written before."""
        if self._batches(BATCHES) or self._all_pieces():
            raise DamagedFileError(
                f"the audit in {self} has lost its {DESCRIPTION}, so its groups and its ZooKeeper are unknown: {CURE}"
            )

    def conflict(self) -> ConflictError:
        """Return the error for two audits in one folder."""
        return ConflictError(f"another audit is writing to {self}: stop it, or use another folder")

    def _damaged(self, *names: str) -> DamagedFileError:
        return DamagedFileError(f"{self.path(*names)} was changed after the audit wrote it: {CURE}")


def standing_names(batch: int) -> tuple[str, str]:
    """Return the names of the folder with the last commit of each partition after a batch."""
    return STANDING, f"{batch:012d}"
