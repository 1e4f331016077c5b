"""The history of the members of a group, recorded while they ran and judged afterwards.

Each process appends to its own file. Each event is one line of JSON and one `write`, which a `kill -9` cannot undo. All
processes read one clock, CLOCK_BOOTTIME, which also runs while a process or the machine is suspended. The server's side
comes from its transaction log (`journal.py`).

**When two members have one claim.** A process may be suspended between reading the clock and writing the line, for any
time. So a line has several times, and only certain facts count. For each message, a worker reads the clock (`since`),
checks that its generation is active, reads the clock again (`sure`), processes the message, reads the clock while it
still works on it (`time`), and writes all three. Therefore:

- The generation was active at `sure` of the first message, and at `since` of the last. A generation does not change, so
  it was active all the time in between: this is its lease of the partition. Two leases of one partition must not
  overlap, in one process or in two. If a suspended process continues and finds its generation inactive, its lease ends
  at the suspension. If it finds the generation active for one more message, its lease covers everything that other
  processes did meanwhile. The judge looks for this.
- The current message is different. A process that was suspended during a message finishes it after other processes have
  begun. No client can prevent that, and the commit of that message is refused. So `time` counts only if the partition
  was released in order, after its workers had ended: reported as `revoked`, or kept in the next generation, and not
  reported as `lost`. Then the lease lasts until the end of the last message.
- When a third party expires a session at the server, as an administrator or the nemesis does, the session is gone at
  once. Its member learns of it by an event, or by its own clock. So the lease ends at that moment (`ending`) if the
  member stops within one session timeout. Sessions that expire by themselves have no such grace: the clock of the
  member must have run out before.

**Commits.** By the server's log: no commit without the owner node and the registration of its session. None lower than
the previous one. None beyond a message that no process has processed. By the files: each refused commit was refused for
a reason that members may see.

**Settling.** After `calm`, when all faults are over, each partition must be worked on within the bound.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Final

from zkgroups.core.history.events import Commit, HistoryEvent, OwnerChange, Rule, violations

CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

LATE: Final = frozenset({"GenerationEndedError", "SessionLostError", "NotClaimedError", "NotRegisteredError"})
"""Errors of a commit that comes too late."""
UNCERTAIN: Final = frozenset({"NotConnectedError", "OutcomeUnknownError"})
"""Errors of a commit while the connection is broken."""


def clock() -> float:
    """Seconds of the clock that all processes of a machine share."""
    return time.clock_gettime(CLOCK)


class Kind(StrEnum):
    """The kind of an event."""

    UP = "up"  # a process has started
    BEGUN = "begun"  # a generation begins: one event for each of its partitions, with the starting offset
    PROCESSED = "processed"
    COMMITTED = "committed"
    REFUSED = "refused"  # a failed commit, with its error
    ASSIGNED = "assigned"  # this and the next two: the events that the callbacks of the member received
    REVOKED = "revoked"
    LOST = "lost"
    FAILED = "failed"  # something that should not happen, with its error
    DOWN = "down"  # a process ends by itself, after its member was closed
    STRUCK = "struck"  # an action of the nemesis, as text in `error`
    ENDING = "ending"  # the nemesis expires a session at the server
    CALM = "calm"  # all faults are over


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a file. `run` names the process, and `generation` counts its generations."""

    kind: Kind
    time: float
    run: str = ""
    member: str = ""
    at: str = ""
    generation: int = 0
    number: int = 0
    offset: int | None = None
    since: float = 0.0
    sure: float = 0.0
    session: int | None = None
    error: str = ""

    def line(self) -> str:
        """The line, without empty fields."""
        defaults = {field.name: field.default for field in fields(self)}
        return json.dumps({name: value for name, value in asdict(self).items() if value != defaults[name]})


@dataclass(frozen=True, slots=True)
class History:
    """All recorded events, and the changes in the server's log. `partitions` must be worked on."""

    events: Sequence[Event]
    partitions: frozenset[str] = frozenset()
    log: Sequence[HistoryEvent] = ()
    session_timeout: float = 4.0

    def of(self, *kinds: Kind) -> Iterator[Event]:
        """The events of these kinds, sorted by time."""
        return (event for event in self.events if event.kind in kinds)

    @property
    def commits(self) -> Iterator[Commit]:
        """The commits in the server's log."""
        return (event for event in self.log if isinstance(event, Commit))


@dataclass(frozen=True, slots=True)
class Violation:
    """A violation, and the rule that it breaks."""

    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


def read(directory: Path) -> list[Event]:
    """The events of all files in a directory, sorted by time. An incomplete last line is ignored."""
    events: list[Event] = []
    for file in sorted(directory.glob("*.jsonl")):
        lines = file.read_text().split("\n")[:-1]
        found = (json.loads(line) for line in lines)
        events += (Event(**{**event, "kind": Kind(event["kind"])}) for event in found)
    return sorted(events, key=lambda event: event.time)


def judge(history: History, *, bound: float | None = None, once: bool = False) -> list[Violation]:
    """Return all violations. `bound` is the limit for settling, in seconds after `calm`. With `once`, no message may
    have been processed twice: members only came and left."""
    found = [*doubled(history), *unlawful(history), *skipped(history), *unexpected(history)]
    found += unsettled(history, bound) if bound is not None else ()
    found += repeated(history) if once else ()
    return found


# Leases


@dataclass(frozen=True, slots=True)
class Lease:
    """A period in which a generation certainly had a partition."""

    at: str
    run: str
    member: str
    generation: int
    start: float
    end: float

    def __str__(self) -> str:
        return f"{self.member} ({self.run}, generation {self.generation}) from {self.start:.6f} to {self.end:.6f}"


def leases(history: History) -> dict[str, list[Lease]]:
    """The leases of each partition, sorted by their start."""
    worked: dict[tuple[str, str, int], list[Event]] = defaultdict(list)
    for event in history.of(Kind.PROCESSED):
        worked[event.at, event.run, event.generation].append(event)
    told = _told(history)
    ending = _ending(history)
    found: dict[str, list[Lease]] = defaultdict(list)
    for (at, run, generation), events in worked.items():
        in_good_order = _given_up_in_good_order(told[run, at], generation)
        end = max(event.time if in_good_order else event.since for event in events)
        start, ended = min(event.sure for event in events), ending.get((run, generation), end)
        if ended < end < ended + history.session_timeout:
            end = ended
        found[at].append(Lease(at, run, events[0].member, generation, start, end))
    return {at: sorted(those, key=lambda lease: lease.start) for at, those in found.items()}


def _told(history: History) -> Mapping[tuple[str, str], list[Event]]:
    """The events that each process received for each partition, sorted by time."""
    told: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in history.of(Kind.BEGUN, Kind.ASSIGNED, Kind.REVOKED, Kind.LOST):
        told[event.run, event.at].append(event)
    return told


def _ending(history: History) -> Mapping[tuple[str, int], float]:
    """Return the time at which another client expired the session of a generation, if it did."""
    moments = {event.session: event.time for event in history.of(Kind.ENDING)}
    begun = (event for event in history.of(Kind.BEGUN) if event.session in moments)
    return {(event.run, event.generation): moments[event.session] for event in begun}


def _given_up_in_good_order(told: Sequence[Event], generation: int) -> bool:
    """Whether the process was told that it keeps or releases the partition after that generation, and not that it lost
    the partition before it got it again."""
    begun = [n for n, event in enumerate(told) if (event.kind, event.generation) == (Kind.BEGUN, generation)]
    revoked = False
    for event in told[begun[0] + 1 :] if begun else ():
        if event.kind is Kind.LOST:
            return False
        if event.kind is not Kind.REVOKED:
            return True
        revoked = True
    return revoked


def doubled(history: History) -> Iterator[Violation]:
    """Leases of one partition that overlap."""
    for at, those in leases(history).items():
        longest = those[0]
        for lease in those[1:]:
            if lease.start < longest.end:
                yield Violation("two have one claim", f"{at}: {longest}, and {lease}")
            longest = max(longest, lease, key=lambda each: each.end)


# Commits, by the server's log


def unlawful(history: History) -> Iterator[Violation]:
    """Commits of a session that did not own the partition or was not registered, claims of a session without a
    registration, and offsets that went back, became malformed or were deleted: `zkgroups history check` finds them."""
    for event in history.log:
        for found in violations(event):
            if found.rule in UNLAWFUL:
                yield Violation(found.rule, f"{at(found.event)}: {found.text}, zxid {event.zxid:#x}")


UNLAWFUL: Final = frozenset(
    {
        Rule.TWO_OWNERS,
        Rule.CLAIM_UNREGISTERED,
        Rule.COMMIT_NOT_OWNER,
        Rule.COMMIT_UNOWNED,
        Rule.COMMIT_UNREGISTERED,
        Rule.WENT_BACK,
        Rule.MALFORMED,
        Rule.DELETED,
    }
)


def at(event: Commit | OwnerChange) -> str:
    """The partition of an event, as in the records of members."""
    return f"{event.topic}/{event.partition}"


def skipped(history: History) -> Iterator[Violation]:
    """Messages below a commit that no member has processed."""
    done: dict[str, set[int]] = defaultdict(set)
    for event in history.of(Kind.PROCESSED):
        done[event.at].add(event.offset or 0)
    committed: dict[str, int] = defaultdict(int)
    for commit in history.commits:
        committed[at(commit)] = max(committed[at(commit)], commit.offset or 0)
    for event in history.of(Kind.COMMITTED):
        committed[event.at] = max(committed[event.at], event.offset or 0)
    for partition, offset in committed.items():
        if missing := sorted(set(range(offset)) - done[partition]):
            yield Violation("a message was skipped", f"{partition}: {_ranges(missing)} below {offset}")


def _ranges(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:5])) + (f" and {len(numbers) - 5} more" if len(numbers) > 5 else "")


def unexpected(history: History) -> Iterator[Violation]:
    """Commits refused for a reason that members should never see, and all other failures."""
    for event in history.of(Kind.REFUSED):
        if event.error.partition(":")[0] not in LATE | UNCERTAIN:
            yield Violation("refused for a wrong reason", f"{event.at}: {event.offset} by {event.run}: {event.error}")
    for event in history.of(Kind.FAILED):
        yield Violation("it failed", f"{event.run} at {event.time:.6f}: {event.error}")


# The end


def unsettled(history: History, bound: float) -> Iterator[Violation]:
    """Partitions that no member works on within the bound after `calm`."""
    calm = [event.time for event in history.of(Kind.CALM)]
    if not calm:
        yield Violation("not settled", "it was never calm")
        return
    worked = (event for event in history.of(Kind.PROCESSED) if calm[-1] < event.since < calm[-1] + bound)
    busy = {event.at for event in worked}
    for at in sorted(history.partitions - busy):
        yield Violation("not settled", f"{at}: nobody worked on it from {calm[-1]:.6f} for {bound:g} s")


def repeated(history: History) -> Iterator[Violation]:
    """Messages that were processed more than once."""
    runs: dict[tuple[str, int | None], list[str]] = defaultdict(list)
    for event in history.of(Kind.PROCESSED):
        runs[event.at, event.offset].append(event.run)
    for (at, offset), those in runs.items():
        if len(those) > 1:
            yield Violation("processed twice", f"{at}: {offset} by {', '.join(those)}")


def shown(violations: Iterable[Violation], limit: int = 20) -> str:
    """The first violations, one per line."""
    lines = list(map(str, violations))
    return "\n".join(lines[:limit] + ([f"and {len(lines) - limit} more"] if len(lines) > limit else []))
