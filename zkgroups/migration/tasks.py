"""The work on rows: functions from Arrow batches to Arrow batches, which an engine calls once per task.

A task opens its own connections, and processes chunks of whole groups. It can be repeated after it was killed, with the
same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from inspect import Parameter, Signature, signature
from typing import Any, Protocol, Self, TypeAlias, TypeVar

from ..core.layouts.template import parse_layout
from ..core.migration.plan_rows import PlanRow, Tally
from ..kafka import BrokerOptions, Brokers
from ..rare_collections import rare_collections
from ..storage.files import Files
from ..tables.sums import TaskSum
from ..zookeeper.registry import Registry
from ..zookeeper.zookeeper_source import ConnectionOptions
from .apply import check_cluster
from .arrow_rows import batches, group_chunks
from .plan import Planner, PlanSettings, SourceNode
from .plan_folder import PlanFolder
from .source_nodes import NamedGroup, source_chunks

# The two engines that read, process and write the files of a plan: one in this process, and Spark.
#
# An engine only moves rows. The layout of the files is in `plan_folder.py`, the work on rows in `tasks.py`.


T = TypeVar("T")

BatchFunction: TypeAlias = Callable[[Iterator[Any]], Iterator[Any]]
"""A function from Arrow batches to Arrow batches. It is called once per task, perhaps in another process, and opens its
own connections."""

OnProgress: TypeAlias = Callable[[str], None]


class Rows(Protocol):
    """Rows of one type as Arrow columns. They may be distributed over tasks, and are computed when they are used.

    `failure` is the beginning of an error message.
    """

    def joined(self, other: Self) -> Self:
        """Return the rows of both, which have the same type."""

    def by_target(self, *, count: int | None = None, tasks: int | None = None) -> Self:
        """Group the rows by target, in order. Pass the number of rows, or of tasks, if it is known."""

    def stored_by_target(self, *, count: int, files: int) -> Self:
        """Return the same as `by_target`, for a plan of `count` rows. Each of its files has whole targets."""

    def map(self, function: BatchFunction, kind: type[Any]) -> Self:
        """Apply a function that returns rows of this type."""

    def write(self, path: str, failure: str, counted: TaskSum[Tally]) -> Tally:
        """Write the rows and a list of files to a new folder. Return the sum of what tasks have added to `counted`."""

    def collect(self, failure: str) -> Any:
        """Return all rows as an Arrow table."""


class Engine(Protocol):
    """Where the work is done."""

    def files(self, destination: str) -> Files:
        """Return the file system of a folder."""

    def folder(self, destination: str) -> PlanFolder:
        """Return the folder of a plan."""

    def run(self, work: Callable[[OnProgress], T], on_progress: OnProgress | None) -> T:
        """Call `work`. Its argument is a function, which `work` must call with the name of each step."""

    def check_writes_to(self, destination: str) -> None:
        """Raise NotSharedError if workers may not share the file system of a folder with this process."""

    def check_writes_once(self) -> None:
        """Raise an error if two workers may process the same groups at the same time."""

    def share_done(self) -> float:
        """Return the finished share of the current work, from 0 to 1. Another thread may call this."""

    def tally_sum(self) -> TaskSum[Tally]:
        """Return a sum for the tasks of one write."""

    def rows(self, kind: type[T], rows: Sequence[T]) -> Rows:
        """Distribute rows of one type."""

    def read(self, kind: type[Any], path: str, *columns: str) -> Rows:
        """Return these columns of the rows in a folder, or all. The caller has checked the files."""

    def count(self, path: str) -> int:
        """Return the number of rows in a folder, from the footers of its files."""


def signature_of(step: Callable[..., Any], *first: str) -> Signature:
    """Return the signature of a step for `help`, with `first` in place of the parameter for the engine."""
    _engine, *parameters = signature(step).parameters.values()
    return Signature([*(Parameter(name, Parameter.POSITIONAL_ONLY) for name in first), *parameters])


@dataclass(frozen=True, slots=True)
class MigrationConnections:
    """The connections of a migration to brokers and ZooKeeper. They have no secrets, so they can be sent to workers."""

    brokers: BrokerOptions
    zookeeper: ConnectionOptions | None

    @classmethod
    def of(cls, brokers: BrokerOptions, zookeeper: ConnectionOptions | None) -> MigrationConnections:
        """Drop the options of a subclass, so that workers need not import that class."""
        return cls(brokers, None if zookeeper is None else zookeeper.connection)

    def check(self, cluster: str | None) -> None:
        """Connect to both, and compare the Kafka cluster with that of the plan."""
        with ExitStack() as stack:
            brokers, _registry = self.open(stack)
            check_cluster(cluster, brokers)

    def open(self, stack: ExitStack) -> tuple[Brokers, Registry | None]:
        """Connect to both until the stack is closed."""
        registry = None if self.zookeeper is None else stack.enter_context(self.zookeeper.connect())
        return stack.enter_context(self.brokers.connect()), registry


# Planning


@dataclass(frozen=True, slots=True)
class PlanGroups:
    """Reads groups from ZooKeeper, and plans them."""

    zookeeper: ConnectionOptions
    brokers: BrokerOptions | None
    settings: PlanSettings
    counted: TaskSum[Tally]

    def __call__(self, found: Iterator[Any]) -> Iterator[Any]:
        with rare_collections(), ExitStack() as stack:
            registry = None
            planner = _LazyPlanner(self.brokers, self.settings, self.counted, stack)
            for groups in group_chunks(NamedGroup, found):
                if registry is None:  # a task without rows does not connect
                    registry = stack.enter_context(self.zookeeper.connect())
                    registry.sync()
                layout = parse_layout(self.settings.layout)
                for chunk in source_chunks(registry, groups, self.settings.topics, layout):
                    yield from planner.batches(chunk)


@dataclass(frozen=True, slots=True)
class PlanNodes:
    """Plans groups whose nodes were read before."""

    brokers: BrokerOptions | None
    settings: PlanSettings
    counted: TaskSum[Tally]

    def __call__(self, found: Iterator[Any]) -> Iterator[Any]:
        with rare_collections(), ExitStack() as stack:
            planner = _LazyPlanner(self.brokers, self.settings, self.counted, stack)
            for chunk in group_chunks(SourceNode, found):
                yield from planner.batches(chunk)


class _LazyPlanner:
    """A planner that connects when it gets the first groups."""

    def __init__(
        self, brokers: BrokerOptions | None, settings: PlanSettings, counted: TaskSum[Tally], stack: ExitStack
    ) -> None:
        self._brokers = brokers
        self._settings = settings
        self._counted = counted
        self._stack = stack
        self._planner: Planner | None = None

    def batches(self, nodes: Sequence[SourceNode]) -> Iterator[Any]:
        """Plan these groups."""
        if self._planner is None:
            brokers = None if self._brokers is None else self._stack.enter_context(self._brokers.connect())
            self._planner = Planner(self._settings, brokers)
        return _batches(PlanRow, self._planner.plan(nodes), self._counted)


def _batches(kind: type[Any], rows: Sequence[Any], counted: TaskSum[Tally]) -> Iterator[Any]:
    counted.add(Tally.of(kind, rows))
    return batches(kind, rows)


# Steps of a plan


@dataclass(frozen=True, slots=True)
class ChunkOperation:
    """The work on a chunk of whole groups: a function of its rows, the brokers and the registry, and its options."""

    kind: type[Any]
    """The type of the results."""
    work: Callable[..., Sequence[Any]]
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, rows: Sequence[PlanRow], brokers: Brokers, registry: Registry | None, /) -> Sequence[Any]:
        return self.work(rows, brokers, registry, **self.options)


@dataclass(frozen=True, slots=True)
class ChunkTask:
    """Processes the rows of a plan chunk by chunk."""

    connections: MigrationConnections
    operation: ChunkOperation
    constants: Mapping[str, Any]
    """The values that are the same in all rows of the plan."""
    counted: TaskSum[Tally]

    def __call__(self, found: Iterator[Any]) -> Iterator[Any]:
        with rare_collections(), ExitStack() as stack:
            opened: tuple[Brokers, Registry | None] | None = None
            for chunk in group_chunks(PlanRow, found, self.constants):
                opened = opened or self.connections.open(stack)  # a task without rows does not connect
                yield from _batches(self.operation.kind, self.operation(chunk, *opened), self.counted)
