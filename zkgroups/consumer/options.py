"""The options of a member, checked when it is created. An error names the option, the value and the bound."""

from __future__ import annotations

import functools
import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final, TypeAlias, TypedDict, TypeVar, cast

from ..core.offsets.reset import OUT_OF_RANGE
from ..core.rebalance.assignors import ASSIGNORS
from ..core.rebalance.members import Assignor
from ..core.znodes.registrations import check_expression
from ..core.znodes.topic_partition import TopicPartition, check_instance, check_topic
from ..core.znodes.values import Pattern, Registration, StartAt
from ..exceptions import InvalidOptionError
from .events import EventKind, MemberEvent, Partitions

Topics: TypeAlias = str | Iterable[str] | Mapping[str, int]
OnPartitions: TypeAlias = Callable[[frozenset[TopicPartition]], Awaitable[None] | None]
OnEvent: TypeAlias = Callable[[MemberEvent], Awaitable[None] | None]

_KAFKA_TOPIC: Final = re.compile("[a-zA-Z0-9._-]{1,249}")

MOST_STREAMS: Final = 10_000
"""The most streams of one topic. A larger number is a mistake."""

LONGEST_DURATION: Final = 86_400.0
"""The longest duration, in seconds. A larger number is probably in milliseconds."""


class LoneOptions(TypedDict, total=False):
    """The options of a `LoneMember`, and of all others."""

    pattern: str | None
    include_internal: bool
    partitions: Callable[[str], Iterable[int]] | None
    start_at: StartAt | str
    out_of_range: StartAt | str
    release_timeout: float
    join_backoff: float
    reconcile_every: float
    on_assigned: OnPartitions | None
    on_revoked: OnPartitions | None
    on_event: OnEvent | None


class SharedOptions(LoneOptions, total=False):
    """The options that a `Member` and a `Consumer` share."""

    streams: int
    id: str | None
    assignors: Sequence[str | Assignor]
    foreign_assignor: str
    rebalance_timeout: float
    max_idle: float | None
    on_lost: OnPartitions | None


class MemberOptions(SharedOptions, total=False):
    """The options of a `Member`."""

    auto_commit_every: float | None
    leaves_on_move: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """All options with their defaults, checked; `Member` explains them."""

    pattern: str | None = None
    streams: int = 1
    include_internal: bool = False
    id: str | None = None
    assignors: Sequence[str | Assignor] = ("range", "roundrobin", "sticky")
    foreign_assignor: str = "range"
    partitions: Callable[[str], Iterable[int]] | None = None
    start_at: StartAt | str = StartAt.EARLIEST
    out_of_range: StartAt | str = "error"
    release_timeout: float = 4.0
    rebalance_timeout: float = 30.0
    join_backoff: float = 5.0
    reconcile_every: float = 5.0
    auto_commit_every: float | None = None
    max_idle: float | None = None
    leaves_on_move: bool = False
    on_assigned: OnPartitions | None = None
    on_revoked: OnPartitions | None = None
    on_lost: OnPartitions | None = None
    on_event: OnEvent | None = None

    def __post_init__(self) -> None:
        for option in ("release_timeout", "rebalance_timeout", "join_backoff", "reconcile_every"):
            _check_seconds(option, getattr(self, option))
        for option in ("auto_commit_every", "max_idle"):
            if getattr(self, option) is not None:
                _check_seconds(option, getattr(self, option))
        if self.rebalance_timeout <= self.release_timeout:
            reason = (
                f"it must be more than release_timeout ({self.release_timeout:g}), so that other members can release"
            )
            raise InvalidOptionError("rebalance_timeout", self.rebalance_timeout, reason)
        for option in ("partitions", "on_assigned", "on_revoked", "on_lost", "on_event"):
            check_callback(option, getattr(self, option))
        if self.start_at not in list(StartAt):
            raise InvalidOptionError("start_at", self.start_at, "it must be one of " + ", ".join(StartAt))
        if self.out_of_range not in OUT_OF_RANGE:
            raise InvalidOptionError("out_of_range", self.out_of_range, "it must be one of " + ", ".join(OUT_OF_RANGE))
        if self.foreign_assignor not in ("range", "roundrobin"):
            reason = "it must be range or roundrobin, the strategies of other clients"
            raise InvalidOptionError("foreign_assignor", self.foreign_assignor, reason)
        if self.id is not None:
            check_instance(self.id)
        self.strategies()

    @property
    def planning_timeout(self) -> float:
        """How many seconds the planner may take. It may have to stop its own workers first."""
        return max(self.rebalance_timeout / 3, self.release_timeout)

    @property
    def when_out_of_range(self) -> StartAt | None:
        """Where to start if a committed offset is outside of the log. None means to raise an error."""
        return None if self.out_of_range == "error" else StartAt(self.out_of_range)

    def strategies(self) -> dict[str, Assignor]:
        """Return the strategies by the names that are announced, the preferred one first."""
        if isinstance(self.assignors, str) or not isinstance(self.assignors, Sequence) or not self.assignors:
            raise InvalidOptionError("assignors", self.assignors, 'it must be a list of strategies, e.g. ["range"]')
        return {_name(assignor): _assignor(assignor) for assignor in self.assignors}


F = TypeVar("F", bound=Callable[..., None])


def takes(names: type) -> Callable[[F], F]:
    """Let an `__init__` with `**options` show these in its signature, with their defaults, and take no others."""

    def wrapped(init: F) -> F:
        own = [each for each in inspect.signature(init).parameters.values() if each.kind is not each.VAR_KEYWORD]
        more = [
            inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type)
            for each in fields(Options)
            if each.name in names.__annotations__
        ]
        signature = inspect.Signature([*own, *more], return_annotation="None")

        @functools.wraps(init)
        def checked(*arguments: Any, **options: Any) -> None:
            signature.bind(*arguments, **options)
            init(*arguments, **options)

        checked.__signature__ = signature  # type: ignore[attr-defined]
        return cast("F", checked)

    return wrapped


def check_callback(option: str, value: object) -> None:
    """Raise `InvalidOptionError` unless it is a function, or None."""
    if value is not None and not callable(value):
        raise InvalidOptionError(option, value, "it must be a function")


def _check_seconds(option: str, seconds: object) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= LONGEST_DURATION:
        raise InvalidOptionError(
            option, seconds, f"it must be a number of seconds above 0 and at most {LONGEST_DURATION:g}"
        )


def _name(assignor: object) -> str:
    if isinstance(assignor, str):
        return assignor
    for name, known in ASSIGNORS.items():
        if assignor is known:
            return name
    if "<" in getattr(assignor, "__qualname__", ""):
        reason = "it must be a function with a unique name, because members compare strategies by name"
        raise InvalidOptionError("assignors", assignor, reason)
    return f"{getattr(assignor, '__module__', '')}.{getattr(assignor, '__qualname__', type(assignor).__qualname__)}"


def _assignor(assignor: object) -> Assignor:
    found = ASSIGNORS.get(assignor) if isinstance(assignor, str) else assignor
    if not callable(found):
        reason = f"it must be a function, or one of {', '.join(ASSIGNORS)}"
        raise InvalidOptionError("assignors", assignor, reason)
    return found


def subscription(
    topics: Topics, options: Options, *, assignors: Iterable[str] = (), timestamp: datetime | None = None
) -> Registration:
    """Return the registration of a member: topics, or a pattern that chooses them."""
    pattern, streams = options.pattern, options.streams
    if pattern is not None:
        if not pattern:
            raise InvalidOptionError("pattern", pattern, "it must not be empty")
        if topics:
            raise InvalidOptionError("pattern", pattern, "topics are given, too: give only one of them")
        chosen, kind = {check_expression(pattern): streams}, Pattern.WHITE_LIST
    else:
        chosen, kind = _with_streams(topics, streams), Pattern.STATIC
    for name, count in chosen.items():
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_STREAMS:
            reason = f"it must be a whole number between 1 and {MOST_STREAMS}"
            raise InvalidOptionError(f"streams of {name!r}", count, reason)
    internal = bool(options.include_internal)
    return Registration(chosen, kind, timestamp, assignors=tuple(assignors), include_internal=internal)


def _with_streams(topics: Topics, streams: int) -> dict[str, int]:
    if isinstance(topics, str):
        topics = [topics]  # a string is iterable, too
    if not isinstance(topics, Iterable):
        raise InvalidOptionError("topics", topics, "it must be one or more names of topics")
    chosen = dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics, streams)
    if not chosen:
        raise InvalidOptionError("topics", chosen, "a member needs at least one topic or a pattern")
    for topic in chosen:
        if not _KAFKA_TOPIC.fullmatch(check_topic(topic)):
            reason = "it must consist of letters, digits, '.', '_' and '-'"
            raise InvalidOptionError("topic", topic, reason)
    return chosen


# Call the callbacks of the user, and log the events of a member. An error in a callback never stops the member.


log = logging.getLogger("zkgroups.member")


_WARNINGS: Final = frozenset(
    {
        EventKind.LOST,
        EventKind.STUCK,
        EventKind.MISSING,
        EventKind.FOREIGN,
        EventKind.MALFORMED,
        EventKind.BACK,
        EventKind.DIFFER,
        EventKind.RESET,
        EventKind.IDLE,
    }
)
"""The events that are logged as warnings."""

_PHRASES: Final = {
    EventKind.JOINED: "joined",
    EventKind.ASSIGNED: "was assigned",
    EventKind.REVOKED: "released",
    EventKind.LOST: "lost",
    EventKind.WAITING: "waits for partitions",
    EventKind.STUCK: "is still waiting",
    EventKind.CONFLICT: "could not claim partitions",
    EventKind.COMMITTED: "committed offsets of",
    EventKind.MISSING: "waits for topics",
    EventKind.FOREIGN: "shares with other clients",
    EventKind.MALFORMED: "ignores unreadable nodes",
    EventKind.BACK: "finds that committed offsets went back",
    EventKind.DIFFER: "finds offsets that differ",
    EventKind.RESET: "moved its start in",
    EventKind.IDLE: "is idle and releases",
    EventKind.MOVED: "follows its group and is now",
    EventKind.LEFT: "left",
}

_NAMED_IN_DETAIL: Final = (EventKind.WAITING, EventKind.STUCK, EventKind.CONFLICT, EventKind.BACK, EventKind.DIFFER)
"""Their details already name the partitions, each with its holder or its offsets."""

_ERRORS_IN_A_ROW: Final = 16
"""How many different errors of one step are logged as warnings until it works again."""

_SHOWN: Final = 20
"""How many partitions a log line names."""


class Callbacks:
    """Reports the events of one member, on its own thread; commits are reported on the thread that commits."""

    def __init__(
        self, name: str, options: Options, number: Callable[[], int], await_callback: Callable[[Any], object]
    ) -> None:
        self._name = name
        self._options = options
        self._number = number
        self._await = await_callback
        self._noted: dict[EventKind, str] = {}
        self._failing: dict[str, set[str]] = {}

    def event(self, kind: EventKind, at: Partitions = frozenset(), detail: str = "") -> None:
        """Log an event once, and call `on_event` with it and the number of the current plan."""
        level = logging.WARNING if kind in _WARNINGS else logging.INFO
        named = detail and kind in _NAMED_IN_DETAIL
        more = f" and {len(at) - _SHOWN} more" if len(at) > _SHOWN else ""
        shown = "" if named or not at else " " + ", ".join(map(str, sorted(at)[:_SHOWN])) + more
        text = shown + (f": {detail}" if detail else "")
        level = logging.DEBUG if kind is EventKind.COMMITTED else level
        log.log(level, "member %s %s%s", self._name, _PHRASES[kind], text)
        self._pass_on(kind, at, detail)

    def failed(self, what: str, error: Exception, at: Partitions = frozenset(), *, trace: bool = False) -> bool:
        """Report a failed step, e.g. "commit". Each error is one warning until the step has `worked` again.

        Return whether it was a warning.
        """
        known, text = self._failing.setdefault(what, set()), str(error)
        level = logging.DEBUG if text in known or len(known) >= _ERRORS_IN_A_ROW else logging.WARNING
        known.add(text)
        log.log(level, "member %s could not %s: %s", self._name, what, text, exc_info=error if trace else None)
        self._pass_on(EventKind.FAILED, at, text)
        return level == logging.WARNING

    def worked(self, what: str) -> None:
        """Record that a step works again: its next failure is a warning."""
        self._failing.pop(what, None)

    def _pass_on(self, kind: EventKind, at: Partitions, detail: str) -> None:
        if self._options.on_event is not None:
            self.call(self._options.on_event, MemberEvent(kind, at, self._number(), detail))

    def notes(self, notes: Mapping[EventKind, str]) -> None:
        """Report each oddity of the group once."""
        for kind in (EventKind.MISSING, EventKind.MALFORMED, EventKind.FOREIGN, EventKind.DIFFER):
            note = notes.get(kind, "")
            if note and self._noted.get(kind) != note:
                self.event(kind, detail=note)
            self._noted[kind] = note

    def call(self, callback: Callable[[Any], Awaitable[None] | None] | None, argument: object) -> None:
        """Run a callback. Log any error that it raises, and go on."""
        if callback is None:
            return
        try:
            result = callback(argument)
            if inspect.isawaitable(result):
                self._await(result)
        except KeyboardInterrupt:
            raise
        except BaseException:  # including SystemExit and a cancelled coroutine: the member goes on
            log.exception("a callback of member %s failed, called with %s", self._name, argument)
