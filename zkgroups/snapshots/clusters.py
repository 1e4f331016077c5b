"""Choose a snapshot of one cluster, when a destination holds snapshots of several."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from ..core.layouts.legacy import LEGACY
from ..exceptions import InvalidOptionError
from ..storage.choose_snapshot import LATEST, find_snapshot, is_name
from ..storage.snapshot_folder import SnapshotFolder


@dataclass(frozen=True, slots=True)
class ChosenSnapshot:
    """One snapshot of one cluster. The cluster is None for an empty snapshot of an earlier version."""

    destination: str
    name: str
    cluster: str | None
    zxid: int | None = None
    """The zxid of the state, if it was read from files."""
    has_log_ends: bool = False
    layout: str = LEGACY.text

    def __str__(self) -> str:
        return f"snapshot {self.name} in {self.destination}"


@dataclass(frozen=True, slots=True)
class SnapshotPair:
    """Two snapshots of one cluster to compare."""

    before: ChosenSnapshot
    after: ChosenSnapshot

    @property
    def without_log_ends(self) -> list[ChosenSnapshot]:
        """Those of the two without log ends, so that no lag is known."""
        return [each for each in (self.before, self.after) if not each.has_log_ends]


def choose_in_cluster(
    layout: SnapshotFolder,
    clusters_of: Callable[[str], set[str]],
    at: str | None = None,
    *,
    cluster: str | None = None,
    address: str | None = None,
) -> ChosenSnapshot:
    """Return the snapshot for `at` (see `choose_snapshot.py`), of the named cluster or else of the one at the address.

    `clusters_of` returns the clusters in the snapshot of this name: one, or none if it is empty and of an earlier
    version. If the destination holds no snapshot of the address, all snapshots must belong to one cluster.
    """
    text = LATEST if at is None else at.strip()
    layout.check_exists()
    wanted = address if cluster is None else cluster
    clusters = cache(clusters_of)
    if name := find_snapshot(layout.latest_first(), text, lambda name: wanted in clusters(name)):
        return _choice(layout, name, wanted)
    name = find_snapshot(layout.latest_first(), text)
    # A name identifies one snapshot. A time selects within one cluster, whose snapshots may all be later.
    names = [name] if name is None or is_name(text) else layout.latest_first()
    there = {each for name in names if name is not None for each in clusters(name)}
    if name is None or cluster is not None or wanted in there:
        of = f" of {wanted}" if cluster is not None or wanted in there else ""
        raise layout.no_snapshot(f"{f' {at}' if at else ''}{of}")
    if len(there) > 1:
        raise InvalidOptionError("cluster", None, f"{layout} holds snapshots of {', '.join(sorted(there))}: choose one")
    return _choice(layout, name, next(iter(there), None))


def _choice(layout: SnapshotFolder, name: str, cluster: str | None) -> ChosenSnapshot:
    summary = layout.summary(name)
    if summary is None:
        return ChosenSnapshot(str(layout), name, cluster)
    return ChosenSnapshot(str(layout), name, cluster, summary.zxid, summary.lag is not None, summary.layout)
