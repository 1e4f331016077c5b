"""The files of an audit.

    DEST/_audit.json                     the groups, topics and layout, and the ZooKeeper: see `AuditDescription`
    DEST/_position.json                  the last finished batch: see `FinishedBatch`
    DEST/_lock                           locked by the running audit
    DEST/batches/<batch>                 created by the run that records this batch
    DEST/commits/<level>-<first>-<last>/ commits, from one batch to another: see `pieces.py`
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

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

from ..exceptions import ConflictError, DamagedFileError, NotFoundError, RefusedError
from ..storage.atomic_folder import UNFINISHED, AtomicFolder
from .followed_ensemble import FollowedEnsemble
from .pieces import Piece, outermost
from .state import AuditDescription, FinishedBatch

COMMITS: Final = "commits"
STANDING: Final = "standing"
BATCHES: Final = "batches"
DESCRIPTION: Final = "_audit.json"
POSITION: Final = "_position.json"
LOCK: Final = "_lock"

CURE: Final = "restore it from a backup, or start a new audit in another folder"

_BATCH: Final = re.compile("[0-9]{12}")


class Journal(AtomicFolder):
    """The folder of one audit."""

    # Commits

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

    # Batches

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
