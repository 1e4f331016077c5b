"""The files of an audit.

    DEST/_audit.json                     the groups and topics of the audit, and its ZooKeeper
    DEST/_lock                           locked by the running audit
    DEST/_checkpoint/                    Spark's checkpoint: the planned and the finished batches
    DEST/commits/<level>-<first>-<last>/ commits, from one batch to another
    DEST/standing/<batch>/               the last commit of each partition, after a batch
    DEST/denied/<batch>                  the groups with forbidden nodes in a batch, until the next such file
    DEST/anew/<batch>                    the first batch after ZooKeeper was replaced or wiped
    DEST/_looked                         the start of the last batch: later commits are unknown

The folders below `commits` and `standing` appear completely or not at all: see `zkgroups/storage/atomic_folder.py`.

Each batch with commits adds a piece of level 0. `MERGE_FACTOR` pieces of one level are merged into one of the next
level, so there are never many. The merged pieces stay until the next merge, for current readers, but are ignored: a
piece within another one is a duplicate. When pieces of level 0 are merged, `standing` is written, too. So the previous
offset of a commit is found there or in the few pieces since.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from ...exceptions import DamagedFileError, NotFoundError, RefusedError
from ...storage.atomic_folder import UNFINISHED
from ...storage.audit_pieces import Piece, outermost
from ..errors import translated
from ..source.saved_position import FIELDS, decode_position, encode_position
from ..storage.spark_folder import SparkFolder
from ..storage.writing import write_and_list
from .followed_ensemble import FollowedEnsemble

COMMITS: Final = "commits"
STANDING: Final = "standing"
FORBIDDEN: Final = "denied"
STARTED_OVER: Final = "anew"
LAST_READ: Final = "_looked"
CHECKPOINT: Final = "_checkpoint"
_PLANNED: Final = f"{CHECKPOINT}/offsets"
ABOUT: Final = "_audit.json"

MERGE_FACTOR: Final = 16
"""The number of pieces to merge. A million batches then make at most 60 pieces."""

_CURE: Final = "restore it from a backup, or start a new audit in another folder"

_BATCH: Final = re.compile("[0-9]{12}")


class Journal(SparkFolder):
    """The folder of one audit."""

    # Commits

    def pieces(self) -> list[Piece]:
        """Return the complete, outermost pieces, sorted."""
        return outermost(piece for piece in self._all_pieces() if self.is_complete(COMMITS, piece.name))

    def _all_pieces(self) -> list[Piece]:
        return [piece for name in self.children(COMMITS) if (piece := Piece.parse(name)) is not None]

    def read(self, pieces: Iterable[Piece], schema: StructType) -> DataFrame:
        """Return the rows of pieces."""
        return self.read_folders([(COMMITS, piece.name) for piece in pieces], schema, _CURE)

    def write_commits(self, rows: DataFrame, piece: Piece) -> None:
        """Add a piece."""
        self._write(rows, COMMITS, piece.name)

    def delete_merged(self) -> None:
        current = set(self.pieces())
        for piece in self._all_pieces():
            if piece not in current:
                self._delete_folder(COMMITS, piece.name)

    def standing_batch(self) -> int | None:
        """Return the batch of the latest `standing`."""
        batches = sorted(self._batches(STANDING), reverse=True)
        return next((int(name) for name in batches if self.is_complete(STANDING, name)), None)

    def read_standing(self, batch: int, schema: StructType) -> DataFrame:
        """Return the last commit of each partition after a batch."""
        return self.read_folders([(STANDING, f"{batch:012d}")], schema, _CURE)

    def write_standing(self, rows: DataFrame, batch: int) -> None:
        """Add the last commit of each partition. Keep the previous `standing` for current readers."""
        before = self.standing_batch()
        self._write(rows, STANDING, f"{batch:012d}")
        for name in self._batches(STANDING):
            if int(name) not in (before, batch):
                self._delete_folder(STANDING, name)

    def _write(self, rows: DataFrame, *names: str) -> None:
        with translated(f"{self.path(*names)} could not be written"), self.staging(datetime.now(UTC)) as path:
            write_and_list(rows, path)
            self.publish(path, *names)

    def _delete_folder(self, *names: str) -> None:
        with translated(f"{self} cannot be written to"):
            self.delete_folder(*names)

    def _batches(self, folder: str) -> list[str]:
        return list(filter(_BATCH.fullmatch, self.children(folder)))

    # Batches

    def forbidden_groups(self, before: int) -> list[str]:
        """Return the groups with forbidden nodes in the last batch before the given one."""
        batches = [name for name in self._batches(FORBIDDEN) if int(name) < before]
        if not batches:
            return []
        names = FORBIDDEN, max(batches)
        groups = self._json(*names)
        if not isinstance(groups, list) or not all(isinstance(group, str) for group in groups):
            raise self._damaged(*names)
        return groups

    def write_forbidden_groups(self, groups: list[str], batch: int) -> None:
        """Write the groups with forbidden nodes in a batch. Keep the previous file, because a batch may be repeated."""
        if groups == self.forbidden_groups(batch + 1):
            return
        names = self._batches(FORBIDDEN)
        before = max((name for name in names if int(name) < batch), default=None)
        with translated(f"{self} cannot be written to"):
            for name in names:
                if name != before:
                    self.delete(FORBIDDEN, name)
            self.replace_text(json.dumps(groups), FORBIDDEN, f"{batch:012d}")

    def first_batch(self) -> int:
        """Return the first batch of the current ZooKeeper, after the audit last started over."""
        return max(map(int, self._batches(STARTED_OVER)), default=0)

    def start_over(self) -> None:
        """Start over with another ZooKeeper, after the batches planned so far. An unfinished batch stays empty."""
        with translated(f"{self} cannot be written to"):
            self.replace_text("", STARTED_OVER, f"{self._last_planned() + 1:012d}")

    def last_read_ms(self) -> int | None:
        """Return the start of the last finished batch; None if no batch is finished."""
        if not self.exists_replaceable(LAST_READ):
            return None
        last_read = self._json(LAST_READ)
        if type(last_read) is not int:
            raise self._damaged(LAST_READ)
        return last_read

    def write_last_read(self, at_ms: int) -> None:
        """Write the start of a finished batch."""
        with translated(f"{self} cannot be written to"):
            self.replace_text(str(at_ms), LAST_READ)

    def _last_planned(self) -> int:
        return max((int(name) for name in self.children(_PLANNED) if name.isdigit()), default=-1)

    # The audit

    def check_exists(self) -> None:
        """Raise NotFoundError if no audit was ever started here."""
        if not self.exists_replaceable(ABOUT):
            self._refuse_without_about()
            raise NotFoundError(f"no audit in {self}: run `zkgroups audit` first")

    def begin(self, groups: str | None, topics: str | None) -> None:
        """Start an audit of these groups and topics, or check that the existing one has them; clean up."""
        about = {"groups": groups, "topics": topics}
        with translated(f"{self} cannot be written to"):
            if self.exists_replaceable(ABOUT):
                self._refuse_other_selection(about)
            else:
                self._refuse_without_about()
                self.replace_text(json.dumps(about), ABOUT)
            self.delete(UNFINISHED)
            self._delete_first_plan()
        self._refuse_without_checkpoint()

    def followed_ensemble(self) -> FollowedEnsemble | None:
        """Return the ensemble of the audit; None if the audit was killed before it connected."""
        about = self._about()
        if "cluster" not in about:
            return None
        if not isinstance(about["cluster"], str) or not all(type(about.get(name)) is int for name in FIELDS):
            raise self._damaged(ABOUT)
        return FollowedEnsemble(about["cluster"], decode_position(about))

    def save_ensemble(self, ensemble: FollowedEnsemble) -> None:
        with translated(f"{self} cannot be written to"):
            about = self._about()
            updated = about | {"cluster": ensemble.cluster} | encode_position(ensemble.position)
            if updated != about:
                self.replace_text(json.dumps(updated), ABOUT)

    def _about(self) -> dict[str, Any]:
        about = self._json(ABOUT)
        if not isinstance(about, dict) or not all(
            isinstance(about.get(name, 0), str | None) for name in ("groups", "topics")
        ):
            raise self._damaged(ABOUT)
        return about

    def _refuse_other_selection(self, about: dict[str, str | None]) -> None:
        known = self._about()
        before = {name: known[name] for name in about}
        if before != about:
            were, are = (
                ", ".join(f"{name} {value or '.*'}" for name, value in each.items()) for each in (before, about)
            )
            raise RefusedError(
                f"the audit in {self} is of {were}, not of {are}: choose the same ones, or another folder"
            )

    def _refuse_without_about(self) -> None:
        """Raise DamagedFileError if any batch was planned: `_audit.json` is always written before."""
        if self.exists(CHECKPOINT) or self._all_pieces():
            raise DamagedFileError(
                f"the audit in {self} has lost its {ABOUT}, so its groups and its ZooKeeper are unknown: {_CURE}"
            )

    def _delete_first_plan(self) -> None:
        """Delete temporary files of an interrupted first batch, which Spark would attribute to another query."""
        if self._last_planned() < 0:
            for name in self.children(_PLANNED):
                if name.startswith("."):
                    self.delete(_PLANNED, name)

    def _refuse_without_checkpoint(self) -> None:
        """Raise RefusedError without a checkpoint: batches would start again at 0, and count as already written."""
        last = max((piece.last for piece in self._all_pieces()), default=-1)
        if last > self._last_planned():
            raise RefusedError(f"the audit in {self} has lost its {CHECKPOINT}: start a new audit in another folder")

    def _json(self, *names: str) -> Any:
        text = self.read_replaceable(*names)
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._damaged(*names) from error

    def _damaged(self, *names: str) -> DamagedFileError:
        return DamagedFileError(f"{self.path(*names)} was changed after the audit wrote it: {_CURE}")
