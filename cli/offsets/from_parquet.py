"""Offsets that are kept as Parquet, by a snapshot or an audit, for the commands that print them or put them back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from zkgroups import ForbiddenNode, UnreadableNode
from zkgroups.core.offsets.file_formats import Record
from zkgroups.core.times import utc
from zkgroups.exceptions import MalformedNodeError, NoPermissionError, NotFoundError, RefusedError
from zkgroups.zookeeper.reading.position import position

from ..shared.arguments import Partitions
from ..shared.connect import connected
from ..shared.errors import Tally
from ..shared.input_files import Place
from ..shared.messages import complain, say
from ..shared.options import Options
from ..shared.spark_options import SparkOptions, checked_moment, spark_installed, spark_options

if TYPE_CHECKING:
    from zkgroups.spark.snapshots.clusters import ChosenSnapshot
    from zkgroups.spark.snapshots.restore import RestorableTopic

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Selection:
    """Which offsets are wanted: all, where nothing else is said."""

    names: tuple[str, ...] = ()
    matching: re.Pattern[str] | None = None
    topics: Partitions | None = None

    @property
    def says_groups(self) -> bool:
        """Whether it is not about all groups."""
        return bool(self.names) or self.matching is not None

    @property
    def only_names(self) -> tuple[str, ...] | None:
        """The groups, where no others can match."""
        return None if self.matching is not None else self.names or None

    def has(self, group: str) -> bool:
        """Whether it is about this group."""
        by_name = group in self.names or (self.matching is not None and self.matching.fullmatch(group) is not None)
        return by_name or not self.says_groups


@dataclass(frozen=True, slots=True)
class Which:
    """Which snapshot of a destination, as the options say it, and the Spark to read it with."""

    at: str | None
    cluster: str | None
    spark: SparkOptions

    def refuse(self, needed: str, *, only_at: bool = False) -> None:
        """They have no meaning without the option that is `needed`."""
        others = {"--cluster": self.cluster, "--master": self.spark.master, "--conf": self.spark.settings}
        for option, value in {"--at": self.at, **({} if only_at else others)}.items():
            if value:
                raise click.UsageError(f"{option} needs {needed}", click.get_current_context())


@dataclass(frozen=True, slots=True)
class FromSnapshot:
    """A snapshot to read."""

    destination: str
    which: Which

    @contextmanager
    def records(self, options: Options, selection: Selection, tally: Tally) -> Iterator[Iterator[Record]]:
        """Its offsets, as they are read; what is none, or not there, is an error and stops nothing."""
        with spark_installed():
            from zkgroups.spark.snapshots.clusters import choose, unfinished_after
            from zkgroups.spark.snapshots.restore import restorable_topics
        address = address_of(options)
        say(options, f"Starting Spark to read a snapshot in {self.destination}.")
        with self.which.spark.session(options) as session:
            at, cluster = self.which.at, self.which.cluster
            choice = choose(session, self.destination, at, cluster=cluster, address=address)
            say(options, _which(choice, address))
            if at in (None, "latest"):
                complain_of_future(choice.name)
                for name in unfinished_after(session, choice):
                    complain(f"snapshot {name} is newer, but incomplete: see `snapshots verify`")
            found = restorable_topics(choice.rows(session), groups=selection.only_names, topics=selection.topics)
            yield chosen_records(found, f"snapshot {choice.name}", selection, tally)


def complain_of_future(name: str) -> None:
    """Say that the snapshot that counts as the newest has a time in the future."""
    from zkgroups.spark.snapshots.moments import is_in_future

    if is_in_future(name):
        complain(f"the time of snapshot {name} is in the future: a clock was wrong, and others may be newer")


def address_of(options: Options) -> str | None:
    """What a snapshot calls the cluster that the command line names, unless it has got a name."""
    from zkgroups.spark import SourceOptions

    return None if options.zookeeper is None else SourceOptions(zookeeper=options.zookeeper).shown_cluster


def _which(choice: ChosenSnapshot, address: str | None) -> str:
    of = "of nothing" if choice.cluster is None else f"of {choice.cluster}"
    state = "" if choice.zxid is None else f" after transaction 0x{choice.zxid:x}, out of files"
    other = "" if address in (None, choice.cluster) else f", and not of {address}"
    return f"This is snapshot {choice.name} {of}{state}{other}."


@dataclass(frozen=True, slots=True)
class FromAudit:
    """Which audit, and the time for which it is asked what was committed then."""

    destination: str
    time_ms: int
    cluster: str | None
    spark: SparkOptions

    @contextmanager
    def records(self, options: Options, selection: Selection, tally: Tally) -> Iterator[Iterator[Record]]:
        """What was committed then, of those that are wanted; what is not there is an error and stops nothing."""
        with spark_installed():
            from zkgroups.spark import offsets_at
            from zkgroups.spark.snapshots.restore import restorable_topics
        time = datetime.fromtimestamp(self.time_ms / 1000, UTC)
        say(options, f"Starting Spark to read the audit in {self.destination}.")
        with self.spark.session(options) as session:
            self._check_ensemble(options, session)
            rows = offsets_at(session, self.destination, time)
            found = restorable_topics(rows, groups=selection.only_names, topics=selection.topics)
            yield chosen_records(found, f"the audit until {utc(self.time_ms)}", selection, tally)

    def _check_ensemble(self, options: Options, session: Any) -> None:
        """Numbers of another ZooKeeper are taken only for whoever names it."""
        from zkgroups.spark.audit.journal import Journal

        journal = Journal(session, self.destination)
        journal.check_exists()
        if (whose := journal.followed_ensemble()) is None:
            raise RefusedError(f"the audit in {journal} does not say of what it is: `zkgroups audit` writes that down")
        name = whose.cluster
        if self.cluster is not None:
            if self.cluster != name:
                raise RefusedError(f"the audit in {journal} is of {name}, and not of {self.cluster}")
            return
        address = address_of(options)
        with connected(options) as registry:
            now = position(registry)
        if not whose.is_same(address, now):
            words = f"the audit in {journal} is of {name}, and not of the ZooKeeper that is at {address} now"
            raise RefusedError(f"{words}: --cluster {name} takes it all the same")


def chosen_records(
    found: Iterable[RestorableTopic], source: str, selection: Selection, tally: Tally
) -> Iterator[Record]:
    """The offsets of what was found, where it is wanted."""
    missing = dict.fromkeys(selection.names)
    for each in found:
        if not selection.has(each.group):
            continue
        missing.pop(each.group, None)
        for node in each.problems:
            tally.failed(_error(node, source))
        for at, offset in each.offsets.items():
            yield Record(each.group, at, offset)
    for name in missing:
        tally.failed(NotFoundError(f"{source} has no offsets of group {name!r}"))


def _error(node: UnreadableNode, source: str) -> MalformedNodeError | NoPermissionError:
    """As it would be of the node itself."""
    error = NoPermissionError(node.path) if isinstance(node, ForbiddenNode) else MalformedNodeError(node)
    error.add_note(f"so it is in {source}")
    return error


# Options


def snapshot_options(help: str) -> Callable[[Decorated], Decorated]:
    """`--from-snapshot`, and what belongs to it: see `from_snapshot`."""

    def decorate(command: Decorated) -> Decorated:
        return click.option("--from-snapshot", "snapshot", metavar="DEST", type=Place(), help=help)(
            which_options(command)
        )

    return decorate


def from_snapshot(given: dict[str, Any]) -> FromSnapshot | None:
    """Takes what the options have brought out of those of a command; None where no snapshot is named."""
    destination, which = given.pop("snapshot"), which_of(given)
    if destination is not None:
        return FromSnapshot(destination, which)
    which.refuse("--from-snapshot DEST")
    return None


def which_options(command: Decorated) -> Decorated:
    """The options that become a `Which`."""
    at = click.option(
        "--at",
        metavar="MOMENT",
        callback=checked_moment,
        help="Which snapshot: its name, latest (the default), previous, or a time, for the newest not after it.",
    )
    cluster = click.option(
        "--cluster", metavar="NAME", help="FollowedEnsemble, where DEST has those of several; that of -z by default."
    )
    return at(cluster(spark_options(command)))


def which_of(given: dict[str, Any]) -> Which:
    """Takes what the options have brought out of those of a command."""
    return Which(given.pop("at"), given.pop("cluster"), SparkOptions(given.pop("master"), given.pop("settings")))
