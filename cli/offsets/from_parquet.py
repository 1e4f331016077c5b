"""Read offsets from a snapshot or an audit, for the commands that export or restore them.

A partition without a valid offset there is reported as an error, and does not stop the others.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from zkgroups import ForbiddenNode, UnreadableNode
from zkgroups.core.layouts.legacy import LEGACY
from zkgroups.core.offsets.files import OffsetRecord
from zkgroups.core.times import utc
from zkgroups.exceptions import MalformedNodeError, NoPermissionError, NotFoundError, RefusedError
from zkgroups.zookeeper.zookeeper_source import ensemble_position

from ..shared.arguments import ChosenPartitions
from ..shared.connect import connected
from ..shared.engine_options import (
    EngineOptions,
    at_option,
    cluster_option,
    spark_options,
)
from ..shared.errors import Tally
from ..shared.messages import complain, say
from ..shared.options import Options
from ..shared.parameter_types import Decorator, FolderUri, combined, usage_error

if TYPE_CHECKING:
    from zkgroups.audit.journal import Journal
    from zkgroups.snapshots.layout import ChosenSnapshot
    from zkgroups.snapshots.local_snapshot import ArrowLayout
    from zkgroups.snapshots.restore import RestorableTopic


@dataclass(frozen=True, slots=True)
class OffsetSelection:
    """The groups, topics and partitions chosen on the command line. By default, all are chosen."""

    names: tuple[str, ...] = ()
    matching: re.Pattern[str] | None = None
    topics: ChosenPartitions | None = None

    @property
    def names_groups(self) -> bool:
        """True if groups are chosen by name or expression."""
        return bool(self.names) or self.matching is not None

    @property
    def only_names(self) -> tuple[str, ...] | None:
        """The chosen groups, if they are chosen by name alone; None if other groups may be chosen, too."""
        return None if self.matching is not None else self.names or None

    def has(self, group: str) -> bool:
        """True if the group is chosen."""
        by_name = group in self.names or (self.matching is not None and self.matching.fullmatch(group) is not None)
        return by_name or not self.names_groups


@dataclass(frozen=True, slots=True)
class SnapshotChoice:
    """The options that choose one snapshot of a destination, and how to read it."""

    at: str | None
    cluster: str | None
    engine: EngineOptions

    def check_unused(self, needed: str, *, only_at: bool = False) -> None:
        """Raise a usage error if one of these options was given, because the option that it needs was not."""
        spark = self.engine.spark
        others = {"--cluster": self.cluster, "--master": spark.master, "--conf": spark.settings}
        for option, value in {"--at": self.at, **({} if only_at else others)}.items():
            if value:
                raise usage_error(f"{option} needs {needed}")


@contextmanager
def opened_snapshots(
    options: Options, engine: EngineOptions, destination: str, to: str = "read the"
) -> Iterator[ArrowLayout]:
    """Start the engine, and yield the snapshots of a destination."""
    local = engine.is_local(destination)
    with engine.started(options, f"{to} snapshots in {destination}", local=local) as spark:
        if spark is None:
            from zkgroups.snapshots.local_snapshot import ArrowLayout

            yield ArrowLayout.at(destination)
        else:
            from zkgroups.spark.snapshots import Layout

            yield Layout(spark, destination)


@dataclass(frozen=True, slots=True)
class SnapshotSource:
    """A snapshot to read offsets from."""

    destination: str
    choice: SnapshotChoice

    @contextmanager
    def records(
        self, options: Options, selection: OffsetSelection, tally: Tally, *, restores: bool = True
    ) -> Iterator[Iterator[OffsetRecord]]:
        """Open the snapshots, and yield an iterator over the chosen offsets of one."""
        address = cluster_address(options)
        with opened_snapshots(options, self.choice.engine, self.destination) as layout:
            from zkgroups.snapshots.restore import restorable_of

            at, cluster = self.choice.at, self.choice.cluster
            snapshot = layout.choose_in_cluster(at, cluster=cluster, address=address)
            say(options, _snapshot_text(snapshot, address))
            if restores and cluster is None:
                _check_is_legacy(f"snapshot {snapshot.name}", snapshot.layout, snapshot.cluster)
            if at in (None, "latest"):
                warn_if_in_future(snapshot.name)
                for name in layout.unfinished_after(snapshot):
                    complain(f"snapshot {name} is newer, but not complete: check it with `zkgroups snapshots verify`")
            found = restorable_of(layout, snapshot, groups=selection.only_names, topics=selection.topics)
            yield _chosen_records(found, f"snapshot {snapshot.name}", selection, tally)


def warn_if_in_future(name: str) -> None:
    """Warn if the time of the snapshot is in the future: a snapshot taken later may then not be the latest."""
    from zkgroups.storage.snapshot_folder import is_in_future

    if is_in_future(name):
        complain(f"the time of snapshot {name} is in the future: a clock was wrong, and other snapshots may be newer")


def cluster_address(options: Options) -> str | None:
    """Return the address of the cluster (`-z`) in the form that snapshots record; None without `-z`."""
    from zkgroups.tables.source_options import SourceOptions

    return None if options.zookeeper is None else SourceOptions(zookeeper=options.zookeeper).shown_cluster


def _snapshot_text(snapshot: ChosenSnapshot, address: str | None) -> str:
    cluster = "an unknown cluster" if snapshot.cluster is None else f"cluster {snapshot.cluster}"
    state = "" if snapshot.zxid is None else f", read from files after transaction 0x{snapshot.zxid:x}"
    other = "" if address in (None, snapshot.cluster) else f" (not {address})"
    return f"Using snapshot {snapshot.name} of {cluster}{other}{state}."


@dataclass(frozen=True, slots=True)
class AuditSource:
    """An audit to read offsets from, as they were committed at a time."""

    destination: str
    time_ms: int
    cluster: str | None
    engine: EngineOptions

    @contextmanager
    def records(self, options: Options, selection: OffsetSelection, tally: Tally) -> Iterator[Iterator[OffsetRecord]]:
        """Open the audit, and yield an iterator over the chosen offsets as of the time."""
        with self._rows(options, selection) as rows:
            from zkgroups.snapshots.restore import restorable_topics

            found = restorable_topics(rows, selection.topics)
            yield _chosen_records(found, f"the audit until {utc(self.time_ms)}", selection, tally)

    @contextmanager
    def _rows(self, options: Options, selection: OffsetSelection) -> Iterator[Any]:
        """Start the engine, and yield the offsets as of the time, as an Arrow table."""
        time = datetime.fromtimestamp(self.time_ms / 1000, UTC)
        local, names = self.engine.is_local(self.destination), selection.only_names
        with self.engine.started(options, f"read the audit in {self.destination}", local=local) as spark:
            if spark is None:
                from zkgroups.audit.journal import Journal
                from zkgroups.audit.recorded_commits import offsets_at as offsets_here

                journal = Journal.at(self.destination)
                self._check_cluster(options, journal)
                yield offsets_here(journal, time, names)
            else:
                from zkgroups.spark.audit import journal_of, last_commits

                journal = journal_of(spark, self.destination)
                self._check_cluster(options, journal)
                yield last_commits(spark, journal, time, names)

    def _check_cluster(self, options: Options, journal: Journal) -> None:
        """Refuse an audit of another ZooKeeper cluster, unless `--cluster` names that cluster."""
        journal.check_exists()
        if (ensemble := journal.description().ensemble) is None:
            raise RefusedError(
                f"the audit in {journal} does not name its cluster: run `zkgroups audit` once to record it"
            )
        name = ensemble.cluster
        if self.cluster is not None:
            if self.cluster != name:
                raise RefusedError(
                    f"the audit in {journal} is of cluster {name}, not of {self.cluster}: "
                    "choose another audit, or correct --cluster"
                )
            return
        _check_is_legacy(f"the audit in {journal}", journal.description().layout, name)
        address = cluster_address(options)
        with connected(options) as registry:
            now = ensemble_position(registry)
        if not ensemble.is_same(address, now):
            raise RefusedError(
                f"the audit in {journal} is of cluster {name}, not of the ZooKeeper now at {address}: "
                f"to use it anyway, add --cluster {name}"
            )


def _check_is_legacy(source: str, layout: str, cluster: str | None) -> None:
    """Refuse offsets of another system: a legacy group may have the same name by chance."""
    if layout != LEGACY.text:
        raise RefusedError(
            f"{source} has offsets of another system ({layout}): to set the offsets of legacy groups to them, add "
            f"--cluster {shlex.quote(cluster or '')}"
        )


def _chosen_records(
    found: Iterable[RestorableTopic], source: str, selection: OffsetSelection, tally: Tally
) -> Iterator[OffsetRecord]:
    missing = dict.fromkeys(selection.names)
    for each in found:
        if not selection.has(each.group):
            continue
        missing.pop(each.group, None)
        for node in each.problems:
            tally.failed(_error(node, source))
        for at, offset in each.offsets.items():
            yield OffsetRecord(each.group, at, offset)
    for name in missing:
        tally.failed(NotFoundError(f"{source} has no offsets of group {name!r}"))


def _error(node: UnreadableNode, source: str) -> MalformedNodeError | NoPermissionError:
    cure = f"recorded in {source}; choose another snapshot or time, or use `zkgroups offsets set`"
    if isinstance(node, ForbiddenNode):
        return NoPermissionError(node.path, cure=cure)
    return MalformedNodeError(node, cure=cure)


# Options


snapshot_choice_options: Final = combined(at_option(), cluster_option, spark_options)
"""The options of `SnapshotChoice`."""


def snapshot_options(help: str) -> Decorator[Any]:
    """Return `--from-snapshot` and the options of `SnapshotChoice`; see `snapshot_source`."""
    snapshot = click.option("--from-snapshot", "snapshot", metavar="DEST", type=FolderUri(), help=help)
    return combined(snapshot, snapshot_choice_options)


def snapshot_source(given: dict[str, Any]) -> SnapshotSource | None:
    """Take the values of `snapshot_options` out of `given`. Return None if no snapshot is named."""
    destination, choice = given.pop("snapshot"), snapshot_choice_of(given)
    if destination is not None:
        return SnapshotSource(destination, choice)
    choice.check_unused("--from-snapshot DEST")
    return None


def snapshot_choice_of(given: dict[str, Any]) -> SnapshotChoice:
    """Take the values of `snapshot_choice_options` out of `given`."""
    engine = EngineOptions.of(given)
    return SnapshotChoice(given.pop("at"), given.pop("cluster"), engine)
