"""What the members of a group did, written down while they did it, and judged afterwards.

Each process writes its own file, one line of JSON for each event, with one `write` that a `kill -9` cannot take back.
All read one clock, CLOCK_BOOTTIME, which goes on while a process or the machine stands still. The server's side comes
from its transaction log (`journal.py`).

**What counts as a claim that two have.** An event is not a moment: whoever reads the clock and then writes can be
stopped in between for as long as one likes. So what is written has several times, and only what is certain counts.
Before each message a worker reads the clock (`since`), sees that its generation is active, reads the clock again
(`sure`), does its work, reads the clock while still at it (`time`), and writes all three. Therefore:

- Up to `since` the generation was active, of the last message; and it was by `sure` of the first. A generation does not
  change while it lasts, so in between it was active all the time: that is its lease of the partition, cut short at both
  ends to what is certain. Two leases of one partition must not overlap, in one process or in two. A process that was
  stopped and goes on has a lease that ends where it was stopped, if the first thing it sees then is that its
  generation is not active; if it sees it active for one message more, its lease reaches over everything that others
  did meanwhile, and that is what is looked for.
- The message in hand is another matter. Whoever was stopped in the middle of it comes back after others have begun,
  and finishes it: no client can prevent that, and what it commits of it is refused. So `time` counts only where the
  partition was given up in good order, with its workers waited for: told `revoked`, or kept into the next generation,
  and not told `lost`. There, the lease lasts until the end of the last message.
- A session that a third party ends at the server, as an administrator can and the nemesis does, is gone at once, and
  its member cannot know before the news has come, or its own clock has run down. So its lease ends there (`ending`), if
  the member stops within one session time-out. A session that ends by its time is no such thing: the member's own
  clock must have run down first.

**Commits.** By the server's log: none without the owner node and the registration of the session that wrote it, none
lower than the one before, none of a message which that very process had not processed (or its starting offset), and
none above a message that nobody has processed. By the files: each `committed` is in the log, one that began after
another had returned is not lower, and what was refused was refused for a reason that a member is told of.

**Settling.** After `calm`, when nothing is broken any more, each partition must be worked on within the bound.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Final

CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

LATE: Final = frozenset({"GenerationEndedError", "SessionLostError", "NotClaimedError", "NotRegisteredError"})
"""Why a commit is refused that comes too late."""
UNCERTAIN: Final = frozenset({"NotConnectedError", "OutcomeUnknownError"})
"""Why one may fail while the link is broken."""


def clock() -> float:
    """Seconds by the clock that all processes of a machine share."""
    return time.clock_gettime(CLOCK)


class Kind(StrEnum):
    """What an event tells."""

    UP = "up"  # a process has started
    BEGUN = "begun"  # a generation begins; one event for each of its partitions, with the starting offset
    PROCESSED = "processed"
    COMMITTING = "committing"
    COMMITTED = "committed"
    REFUSED = "refused"  # a commit, with its error
    ASSIGNED = "assigned"  # this and the next two: what the member's callbacks were told
    REVOKED = "revoked"
    LOST = "lost"
    FAILED = "failed"  # something that should not happen, with its error
    DOWN = "down"  # a process ends by itself, after its member was closed
    STRUCK = "struck"  # what the nemesis does, as text in `error`
    ENDING = "ending"  # the nemesis ends a session at the server
    CALM = "calm"  # nothing is broken any more


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a file; `run` names the process, and `generation` counts its generations."""

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
        """The line, without what says nothing."""
        defaults = {field.name: field.default for field in fields(self)}
        return json.dumps({name: value for name, value in asdict(self).items() if value != defaults[name]})


@dataclass(frozen=True, slots=True)
class Write:
    """An offset as the server wrote it (None: deleted, or no offset), and what it knew then of the session."""

    zxid: int
    session: int
    at: str
    offset: int | None
    owner: int | None
    """The session that held the partition."""
    registered: bool
    """Whether the session had a registration."""


@dataclass(frozen=True, slots=True)
class Grant:
    """An owner node that the server made, and whether the session had a registration then."""

    zxid: int
    session: int
    at: str
    name: str
    registered: bool


@dataclass(frozen=True, slots=True)
class History:
    """Everything that was written down. `partitions` are those that somebody should work on; sessions of
    `administrators` may write what they like."""

    events: Sequence[Event]
    partitions: frozenset[str] = frozenset()
    writes: Sequence[Write] = ()
    grants: Sequence[Grant] = ()
    administrators: frozenset[int] = frozenset()
    session_timeout: float = 4.0

    def of(self, *kinds: Kind) -> Iterator[Event]:
        """The events of these kinds, in the order of time."""
        return (event for event in self.events if event.kind in kinds)


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must not be, and which rule it breaks."""

    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


def read(directory: Path) -> list[Event]:
    """The events of all files in a directory, in the order of time; half a line at the end of a file is no event."""
    events: list[Event] = []
    for file in sorted(directory.glob("*.jsonl")):
        lines = file.read_text().split("\n")[:-1]
        found = (json.loads(line) for line in lines)
        events += (Event(**{**event, "kind": Kind(event["kind"])}) for event in found)
    return sorted(events, key=lambda event: event.time)


def judge(history: History, *, bound: float | None = None, once: bool = False) -> list[Violation]:
    """Everything that is wrong. `bound` is for settling, in seconds after `calm`; with `once`, nothing may have been
    processed twice: nothing was broken, only members came and went."""
    found = [*doubled(history), *unfenced(history), *fallen(history), *unprocessed(history), *skipped(history)]
    found += [*unwritten(history), *backward(history), *unexpected(history), *mistold(history)]
    found += unsettled(history, bound) if bound is not None else ()
    found += repeated(history) if once else ()
    return found


# Leases


@dataclass(frozen=True, slots=True)
class Lease:
    """When a generation certainly had a partition."""

    at: str
    run: str
    member: str
    generation: int
    start: float
    end: float

    def __str__(self) -> str:
        return f"{self.member} ({self.run}, generation {self.generation}) from {self.start:.6f} to {self.end:.6f}"


def leases(history: History) -> dict[str, list[Lease]]:
    """The leases of each partition, by their start."""
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
    """What each process was told of each partition, in the order of time."""
    told: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in history.of(Kind.BEGUN, Kind.ASSIGNED, Kind.REVOKED, Kind.LOST):
        told[event.run, event.at].append(event)
    return told


def _ending(history: History) -> Mapping[tuple[str, int], float]:
    """When the session of a generation was ended by somebody else, if it was."""
    moments = {event.session: event.time for event in history.of(Kind.ENDING)}
    begun = (event for event in history.of(Kind.BEGUN) if event.session in moments)
    return {(event.run, event.generation): moments[event.session] for event in begun}


def _given_up_in_good_order(told: Sequence[Event], generation: int) -> bool:
    """Whether the process was told that it keeps the partition after that generation, or that it is to let go of it;
    and not that it has lost it, before it got it again."""
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


def _by_partition(history: History) -> dict[str, list[Write]]:
    found: dict[str, list[Write]] = defaultdict(list)
    for write in sorted(history.writes, key=lambda write: write.zxid):
        found[write.at].append(write)
    return found


def unfenced(history: History) -> Iterator[Violation]:
    """Commits of a session that did not hold the partition, or was not registered; and claims of one that was not."""
    for grant in history.grants:
        if not grant.registered:
            text = f"{grant.at}: by {grant.name!r} in session {grant.session:#x}, zxid {grant.zxid:#x}"
            yield Violation("a claim without the registration", text)
    for write in history.writes:
        if write.session in history.administrators:
            continue
        if write.owner != write.session:
            holder = "nobody" if write.owner is None else f"session {write.owner:#x}"
            text = f"{write.at}: session {write.session:#x} wrote {write.offset} while {holder} held it"
            yield Violation("a commit without the claim", f"{text}, zxid {write.zxid:#x}")
        elif not write.registered:
            text = f"{write.at}: session {write.session:#x} wrote {write.offset}, zxid {write.zxid:#x}"
            yield Violation("a commit without the registration", text)


def fallen(history: History) -> Iterator[Violation]:
    """Offsets that went back or away, by nobody who may do so."""
    for at, writes in _by_partition(history).items():
        for before, after in pairwise(writes):
            if after.session in history.administrators or before.offset is None:
                continue
            if after.offset is None or after.offset < before.offset:
                text = f"{at}: from {before.offset} to {after.offset}, zxid {after.zxid:#x}"
                yield Violation("an offset went back", f"{text}, by session {after.session:#x}")


def unprocessed(history: History) -> Iterator[Violation]:
    """Commits of what their process had not processed."""
    runs = {event.session: event.run for event in history.of(Kind.BEGUN) if event.session is not None}
    may_commit = {(event.run, event.at, (event.offset or 0) + 1) for event in history.of(Kind.PROCESSED)}
    may_commit |= {(event.run, event.at, event.offset or 0) for event in history.of(Kind.BEGUN)}
    for write in history.writes:
        if write.session in history.administrators or write.offset is None:
            continue
        if write.session not in runs:
            text = f"{write.at}: {write.offset} by session {write.session:#x}, zxid {write.zxid:#x}"
            yield Violation("a commit of nobody", text)
        elif (runs[write.session], write.at, write.offset) not in may_commit:
            yield Violation(
                "a commit of what was not processed", f"{write.at}: {write.offset} by {runs[write.session]}"
            )


def skipped(history: History) -> Iterator[Violation]:
    """Messages below a commit that nobody has processed."""
    done: dict[str, set[int]] = defaultdict(set)
    for event in history.of(Kind.PROCESSED):
        done[event.at].add(event.offset or 0)
    committed: dict[str, int] = defaultdict(int)
    for write in history.writes:
        if write.session not in history.administrators:
            committed[write.at] = max(committed[write.at], write.offset or 0)
    for event in history.of(Kind.COMMITTED):
        committed[event.at] = max(committed[event.at], event.offset or 0)
    for at, offset in committed.items():
        if missing := sorted(set(range(offset)) - done[at]):
            yield Violation("a message was skipped", f"{at}: {_ranges(missing)} below {offset}")


def _ranges(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:5])) + (f" and {len(numbers) - 5} more" if len(numbers) > 5 else "")


def unwritten(history: History) -> Iterator[Violation]:
    """Commits that returned, and which the server has never written."""
    if not history.writes:
        return
    written = {(write.at, write.offset) for write in history.writes}
    for event in history.of(Kind.COMMITTED):
        if (event.at, event.offset) not in written:
            yield Violation("a commit was lost", f"{event.at}: {event.offset} by {event.run} at {event.time:.6f}")


# Commits, by who made them


def backward(history: History) -> Iterator[Violation]:
    """Commits lower than one that had returned before they began."""
    highest: dict[str, Event] = {}
    begun: dict[tuple[str, str, int | None], list[Event]] = defaultdict(list)
    for event in history.of(Kind.COMMITTING, Kind.COMMITTED):
        top = highest.get(event.at)
        if event.kind is Kind.COMMITTING:
            begun[event.run, event.at, event.offset].append(top or event)
            continue
        known = (begun[event.run, event.at, event.offset] or [event]).pop()
        if (known.offset or 0) > (event.offset or 0):
            text = f"{event.at}: {event.offset} by {event.run} after {known.offset} by {known.run}"
            yield Violation("a commit went back", f"{text}, at {event.time:.6f}")
        if top is None or (top.offset or 0) < (event.offset or 0):
            highest[event.at] = event


def unexpected(history: History) -> Iterator[Violation]:
    """Commits refused for a reason that a member should never be told, and whatever else failed."""
    for event in history.of(Kind.REFUSED):
        if event.error.partition(":")[0] not in LATE | UNCERTAIN:
            yield Violation("refused for a wrong reason", f"{event.at}: {event.offset} by {event.run}: {event.error}")
    for event in history.of(Kind.FAILED):
        yield Violation("it failed", f"{event.run} at {event.time:.6f}: {event.error}")


# What members are told


def mistold(history: History) -> Iterator[Violation]:
    """Partitions lost or revoked that the member did not have, as far as it was told; and plans that grow older."""
    for (run, at), events in _told(history).items():
        had = Kind.LOST
        for event in events:
            if event.kind is Kind.LOST and had is Kind.LOST:
                yield Violation("lost without having it", f"{at}: {run} at {event.time:.6f}")
            elif event.kind is Kind.REVOKED and had in (Kind.LOST, Kind.REVOKED):
                yield Violation("revoked without having it", f"{at}: {run} at {event.time:.6f}")
            had = event.kind
    newest: dict[str, int] = {}
    for event in history.of(Kind.BEGUN):
        if event.number < newest.get(event.run, event.number):
            text = f"{event.run}: generation of plan {event.number} after {newest[event.run]}"
            yield Violation("a plan grew older", text)
        newest[event.run] = event.number


# The end


def unsettled(history: History, bound: float) -> Iterator[Violation]:
    """Partitions on which nobody works within the bound after all was calm."""
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
    """The first of them, one in each line."""
    lines = list(map(str, violations))
    return "\n".join(lines[:limit] + ([f"and {len(lines) - limit} more"] if len(lines) > limit else []))
