"""The two engines that read, process and write the files of a plan: one in this process, and Spark.

An engine only moves rows. The layout of the files is in `plan_folder.py`, the work on rows in `tasks.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from inspect import Parameter, Signature, signature
from typing import Any, Protocol, Self, TypeAlias, TypeVar

from ...core.migration.tally import Tally
from ...storage.files import Files
from ..plan_folder import PlanFolder
from .tallies import TallySum

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

    def select(self, *columns: str) -> Self:
        """Return these columns."""

    def by_target(self, *, count: int | None = None, tasks: int | None = None) -> Self:
        """Group the rows by target, in order. Pass the number of rows, or of tasks, if it is known."""

    def stored_by_target(self, *, count: int, files: int) -> Self:
        """Return the same as `by_target`, for a plan of so many rows. Each of its files has whole targets."""

    def map(self, function: BatchFunction, kind: type[Any]) -> Self:
        """Apply a function that returns rows of this type."""

    def write(self, path: str, failure: str, counted: TallySum) -> Tally:
        """Write the rows and a list of files to a new folder. Return the sum of what tasks have added to `counted`."""

    def collect(self, failure: str) -> Any:
        """Return all rows as an Arrow table."""

    def sorted(self, kind: type[T], keys: Sequence[str], failure: str) -> Iterator[T]:
        """Yield the rows in order."""


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

    def tally_sum(self) -> TallySum:
        """Return a sum for the tasks of one write."""

    def rows(self, kind: type[T], rows: Sequence[T]) -> Rows:
        """Distribute rows of one type."""

    def read(self, kind: type[Any], *paths: str) -> Rows:
        """Return the rows of the Parquet files in these folders. The caller has checked the files."""

    def count(self, path: str) -> int:
        """Return the number of rows in a folder, from the footers of its files."""

    def first(self, path: str, kind: type[T], failure: str) -> T | None:
        """Return any row of a folder."""


def signature_of(step: Callable[..., Any], *first: str) -> Signature:
    """Return the signature of a step for `help`, with `first` in place of the parameter for the engine."""
    _engine, *parameters = signature(step).parameters.values()
    return Signature([*(Parameter(name, Parameter.POSITIONAL_ONLY) for name in first), *parameters])
