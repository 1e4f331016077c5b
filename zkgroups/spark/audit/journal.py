"""Where an audit lies, and how what is written there comes to be whole or not at all.

    DEST/_audit.json                     which groups and topics it is of, and of which ZooKeeper
    DEST/_lock                           locked by who writes
    DEST/_checkpoint/                    Spark's: which batches were planned, and which of them are done
    DEST/_unfinished/<random>/           written here first, where no reader looks
    DEST/commits/<level>-<first>-<last>/part-*.parquet     what was committed, from one batch to another
    DEST/commits/<level>-<first>-<last>/_SUCCESS           lists the files: see `spark/storage/completeness.py`
    DEST/standing/<batch>/part-*.parquet                   the last of each partition, after a batch
    DEST/standing/<batch>/_SUCCESS
    DEST/denied/<batch>                  groups of which something could not be read in a batch, and until it says else
    DEST/anew/<batch>                    the first batch of another ZooKeeper, or of one that was wiped
    DEST/_looked                         when the last batch was begun: nothing is known of what was committed since

A folder is moved into place, and is there when its `_SUCCESS` is. Each batch in which something was committed adds a
piece of level 0. When there are `MERGE_FACTOR` pieces of one level, they are merged into one of the next level, so that
never many are there; those stay until the next time, for whoever reads them just then, and count no more: a piece
within another one is the same again. When the pieces of level 0 are put together, `standing` is written anew, so that
what stood before a commit is found there, or in the few pieces since.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from ...exceptions import DamagedFileError, NotFoundError, RefusedError
from ...zookeeper.reading.position import Position
from ..errors import translated
from ..snapshots.layout import MARK, UNFINISHED
from ..storage.completeness import check_written, mark_written, write_and_list
from ..storage.files import java, read_text, resolve, write_text
from .followed_ensemble import FollowedEnsemble

COMMITS: Final = "commits"
STANDING: Final = "standing"
DENIED: Final = "denied"
ANEW: Final = "anew"
LOOKED: Final = "_looked"
CHECKPOINT: Final = "_checkpoint"
_OFFSETS: Final = f"{CHECKPOINT}/offsets"
ABOUT: Final = "_audit.json"
_NEW: Final = ".new"
"""Ends the name of a small file that is about to take the place of an older one."""

MERGE_FACTOR: Final = 16
"""So many pieces of a level become one of the next: of a million batches there are then 60 pieces at most."""

_CURE: Final = "put it back from a backup, or begin a new audit in another folder"

_PIECE: Final = re.compile("([0-9]+)-([0-9]{12})-([0-9]{12})")
_BATCH: Final = re.compile("[0-9]{12}")


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """The commits of some batches that follow each other."""

    first: int
    last: int
    level: int = 0

    @property
    def name(self) -> str:
        """Its folder."""
        return f"{self.level}-{self.first:012d}-{self.last:012d}"

    def has(self, other: Piece) -> bool:
        """Whether another one is in it."""
        return self.level > other.level and self.first <= other.first and other.last <= self.last


def outermost(pieces: Iterable[Piece]) -> list[Piece]:
    """Those that are in no other one, in their order.

    >>> outermost([Piece(0, 3, level=1), Piece(0, 0), Piece(2, 2), Piece(4, 4)])
    [Piece(first=0, last=3, level=1), Piece(first=4, last=4, level=0)]
    """
    found = sorted(pieces)
    return [piece for piece in found if not any(other.has(piece) for other in found)]


class Journal:
    """One audit's folder, on whatever file system Spark writes to."""

    def __init__(self, spark: SparkSession, destination: str) -> None:
        self._spark = spark
        self._jvm: Any = java(spark)
        self._files, self._root = resolve(spark, destination)

    def __str__(self) -> str:
        return str(self._root.toString())

    def local_path(self) -> str | None:
        """Where it is on this machine, if it is there."""
        uri = self._root.toUri()
        return str(uri.getPath()) if uri.getScheme() == "file" else None

    # Reading

    def pieces(self) -> list[Piece]:
        """The pieces that count, in their order."""
        return outermost(piece for piece in self._all_pieces() if self._is_whole(COMMITS, piece.name))

    def _all_pieces(self) -> list[Piece]:
        matches = filter(None, map(_PIECE.fullmatch, self._list(COMMITS)))
        return [Piece(int(match[2]), int(match[3]), int(match[1])) for match in matches]

    def forbidden_groups(self, before: int) -> list[str]:
        """The groups of which something could not be read in the last batch before that one."""
        batches = [name for name in self._list(DENIED) if _BATCH.fullmatch(name) and int(name) < before]
        if not batches:
            return []
        names = DENIED, max(batches)
        groups = self._json(*names)
        if not isinstance(groups, list) or not all(isinstance(group, str) for group in groups):
            raise self._damaged(*names)
        return groups

    def first_batch(self) -> int:
        """The first of the ZooKeeper that is followed now; what is before is of another."""
        return max((int(name) for name in self._list(ANEW) if _BATCH.fullmatch(name)), default=0)

    def last_look_ms(self) -> int | None:
        """Until when all was found that still stood then; None where no batch was finished."""
        if not self._is_there(LOOKED):
            return None
        looked = self._json(LOOKED)
        if type(looked) is not int:
            raise self._damaged(LOOKED)
        return looked

    def read(self, pieces: Iterable[Piece], schema: StructType) -> DataFrame:
        """What is in these pieces."""
        return self._read([(COMMITS, piece.name) for piece in pieces], schema)

    def standing(self) -> int | None:
        """After which batch the newest `standing` was written."""
        batches = sorted(filter(_BATCH.fullmatch, self._list(STANDING)), reverse=True)
        return next((int(name) for name in batches if self._is_whole(STANDING, name)), None)

    def read_standing(self, batch: int, schema: StructType) -> DataFrame:
        """The last of each partition, after that batch."""
        return self._read([(STANDING, f"{batch:012d}")], schema)

    def _read(self, folders: list[tuple[str, str]], schema: StructType) -> DataFrame:
        """The rows in these folders; an error if a file of them is missing, or is not as it was written."""
        if not folders:
            return self._spark.createDataFrame([], schema)
        for names in folders:
            check_written(self._spark, self._files, self._path(*names), _CURE)
        paths = [self.path(*names) for names in folders]
        with translated(f"{self} cannot be read"):
            return self._spark.read.schema(schema).option("__globPaths__", "false").parquet(*paths)

    def check_exists(self) -> None:
        """Raise an error where no audit was ever begun."""
        if not self._is_there(ABOUT):
            with translated(f"{self} cannot be read"):
                self._refuse_without_about()
            raise NotFoundError(f"there is no audit in {self}")

    def followed_ensemble(self) -> FollowedEnsemble | None:
        """Which ZooKeeper it is of; None where it was killed before it knew."""
        about = self._about()
        if "cluster" not in about:
            return None
        numbers: dict[str, Any] = {name: about.get(name) for name in ("zxid", "created_zxid", "created_ms")}
        if not isinstance(about["cluster"], str) or not all(type(number) is int for number in numbers.values()):
            raise self._damaged(ABOUT)
        return FollowedEnsemble(about["cluster"], Position(**numbers))

    def _about(self) -> dict[str, Any]:
        """The contents of `_audit.json`, which at least has the groups and topics."""
        about = self._json(ABOUT)
        if not isinstance(about, dict) or not all(
            isinstance(about.get(name, 0), str | None) for name in ("groups", "topics")
        ):
            raise self._damaged(ABOUT)
        return about

    def _json(self, *names: str) -> Any:
        """The value in a small file."""
        with translated(f"{self.path(*names)} cannot be read"):
            text = self._text(*names)
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._damaged(*names) from error

    def _damaged(self, *names: str) -> DamagedFileError:
        return DamagedFileError(f"{self.path(*names)} is not as the audit has written it: {_CURE}")

    # Writing

    def begin(self, groups: str | None, topics: str | None) -> None:
        """Make the folder an audit's, or find that it is the one of these groups and topics; and clear it up."""
        about = {"groups": groups, "topics": topics}
        with translated(f"{self} cannot be written to"):
            if self._is_there(ABOUT):
                self._refuse_another(about)
            else:
                self._refuse_without_about()
                self._write_text(json.dumps(about), ABOUT)
            self._files.delete(self._path(UNFINISHED), True)
            self._clear_first_plan()
        self._refuse_without_checkpoint()

    def save_ensemble(self, whose: FollowedEnsemble) -> None:
        """Write down which ZooKeeper it is of."""
        with translated(f"{self} cannot be written to"):
            about = self._about()
            said = about | {"cluster": whose.cluster} | asdict(whose.begun)
            if said != about:
                self._write_text(json.dumps(said), ABOUT)

    def _refuse_another(self, about: dict[str, str | None]) -> None:
        known = self._about()
        before = {name: known[name] for name in about}
        if before != about:
            were, are = (
                ", ".join(f"{name} {value or '.*'}" for name, value in each.items()) for each in (before, about)
            )
            raise RefusedError(f"the audit in {self} is of {were}, not of {are}: what it has not read would be missing")

    def _refuse_without_about(self) -> None:
        """Raise an error where batches were planned: `_audit.json` is always written before."""
        if self._files.exists(self._path(CHECKPOINT)) or self._all_pieces():
            raise DamagedFileError(
                f"the audit in {self} has lost its {ABOUT}, so that its groups and its ZooKeeper are not known: {_CURE}"
            )

    def _clear_first_plan(self) -> None:
        """Delete the temporary files of a first batch that was cut short, which Spark takes for another audit's."""
        if self._last_planned() < 0:
            for name in self._list(_OFFSETS):
                if name.startswith("."):
                    self._files.delete(self._path(_OFFSETS, name), False)

    def _refuse_without_checkpoint(self) -> None:
        """Batches are counted by the checkpoint: without it they would begin again at 0, and be taken for done."""
        last = max((piece.last for piece in self._all_pieces()), default=-1)
        if last > self._last_planned():
            raise RefusedError(f"the audit in {self} has lost its {CHECKPOINT}: a new one needs a folder of its own")

    def _last_planned(self) -> int:
        names = self._list(_OFFSETS)
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def start_over(self) -> None:
        """What comes is of another ZooKeeper; a batch that was planned before, and is not done, will be empty."""
        with translated(f"{self} cannot be written to"):
            self._write_text("", ANEW, f"{self._last_planned() + 1:012d}")

    def write_last_look(self, at_ms: int) -> None:
        """A batch was begun then, and is in place."""
        with translated(f"{self} cannot be written to"):
            self._write_text(str(at_ms), LOOKED)

    def write_commits(self, rows: DataFrame, piece: Piece) -> None:
        """Add a piece."""
        self._put(rows, COMMITS, piece.name)

    def write_standing(self, rows: DataFrame, batch: int) -> None:
        """Add the last of each partition; of those before, the newest stays."""
        before = self.standing()
        self._put(rows, STANDING, f"{batch:012d}")
        for name in self._list(STANDING):
            if _BATCH.fullmatch(name) and int(name) not in (before, batch):
                self._throw_away(STANDING, name)

    def write_forbidden_groups(self, groups: list[str], batch: int) -> None:
        """Of which groups something could not be read in a batch; the note before it stays, for when it comes again."""
        if groups == self.forbidden_groups(batch + 1):
            return
        names = [name for name in self._list(DENIED) if _BATCH.fullmatch(name)]
        before = max((name for name in names if int(name) < batch), default=None)
        with translated(f"{self} cannot be written to"):
            for name in names:
                if name != before:
                    self._files.delete(self._path(DENIED, name), False)
            self._write_text(json.dumps(groups), DENIED, f"{batch:012d}")

    def delete_merged(self) -> None:
        """Pieces that were put together some time ago."""
        counted = set(self.pieces())
        for piece in self._all_pieces():
            if piece not in counted:
                self._throw_away(COMMITS, piece.name)

    def _put(self, rows: DataFrame, *names: str) -> None:
        path, there = self._path(UNFINISHED, uuid.uuid4().hex), self._path(*names)
        with translated(f"{there.toString()} could not be written"):
            try:
                write_and_list(rows, path.toString())
                self._move(path, there)
                mark_written(self._spark, self._files, there)
            finally:
                with suppress(Py4JError, OSError):
                    self._files.delete(path, True)

    def _move(self, here: Any, there: Any) -> None:
        if self._files.exists(there):  # it has no mark: of a run that was killed
            self._files.delete(there, True)
        self._files.mkdirs(there.getParent())
        self._rename(here, there)

    def _throw_away(self, *names: str) -> None:
        """Its mark first, so that it is never half there."""
        with translated(f"{self} cannot be written to"):
            self._files.delete(self._path(*names, MARK), False)
            self._files.delete(self._path(*names), True)

    # Files

    def path(self, *names: str) -> str:
        """Where something is."""
        return str(self._path(*names).toString())

    def _path(self, *names: str) -> Any:
        path = self._root
        for name in names:
            path = self._jvm.org.apache.hadoop.fs.Path(path, name)
        return path

    def _is_whole(self, *names: str) -> bool:
        with translated(f"{self} cannot be read"):
            return bool(self._files.exists(self._path(*names, MARK)))

    def _list(self, name: str) -> list[str]:
        folder = self._path(name)
        with translated(f"{self} cannot be read"):
            found = self._files.listStatus(folder) if self._files.exists(folder) else ()
            return [each.getPath().getName() for each in found]

    def _is_there(self, *names: str) -> bool:
        with translated(f"{self.path(*names)} cannot be read"):
            return self._newest(*names) is not None

    def _newest(self, *names: str) -> Any:
        """The path of a small file, or of its successor while the file is being replaced; None if neither exists."""
        path = self._path(*names)
        for each in (path, path.suffix(_NEW), path):  # the successor may have been renamed between the first two
            if self._files.exists(each):
                return each
        return None

    def _text(self, *names: str) -> str:
        return read_text(self._spark, self._files, self._newest(*names) or self._path(*names))

    def _write_text(self, text: str, *names: str) -> None:
        """Replace a small file. Wherever a run is killed, either the old text or the new one can be read.

        Not every file system can rename to an existing name, so the old file is deleted when its successor is complete.
        """
        path, written = self._path(*names), self._path(UNFINISHED, uuid.uuid4().hex)
        new = path.suffix(_NEW)
        write_text(self._files, written, text)
        self._files.mkdirs(path.getParent())
        if not self._files.exists(path) and self._files.exists(new):  # a run was killed between the last two steps
            self._rename(new, path)
        self._files.delete(new, False)
        self._rename(written, new)
        self._files.delete(path, False)
        self._rename(new, path)

    def _rename(self, here: Any, there: Any) -> None:
        if not self._files.rename(here, there):
            raise OSError(f"{here.toString()} was not renamed to {there.toString()}")
