"""The judge finds no violation in a good history, and finds each planted violation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from zkgroups.core.history.changes import ChangeKind, NodeChange
from zkgroups.core.history.events import Commit, CommitAction, OwnerAction, OwnerChange, PastInstance, PastOwner

from . import journal
from .history import Event, History, Kind, judge, leases, read

AT = "orders/0"
ANNE, BERT = 0xA, 0xB
"""The sessions of the members."""


def begun(run: str, time: float, generation: int = 1, offset: int = 0, **more: Any) -> Event:
    session = {"anne": ANNE, "bert": BERT}[run]
    more = {"session": session, "number": int(time), "offset": offset, "generation": generation, **more}
    return Event(Kind.BEGUN, time, run, run, AT, **more)


def processed(run: str, time: float, offset: int, generation: int = 1, *, since: float | None = None) -> Event:
    """A message that took a tenth of a second, unless the process was suspended during it."""
    since = time - 0.1 if since is None else since
    return Event(Kind.PROCESSED, time, run, run, AT, generation, offset=offset, since=since, sure=since + 0.01)


def told(kind: Kind, run: str, time: float, *, offset: int | None = None, error: str = "") -> Event:
    return Event(kind, time, run, run, AT, offset=offset, error=error)


def write(zxid: int, session: int, offset: int, owner: int | None) -> Commit:
    """A commit. `history` adds the offset before."""
    instance, held = PastInstance("g", "someone", session), None if owner is None else PastOwner("someone", owner)
    action = CommitAction.COMMITTED
    return Commit(zxid, 0, session, "g", "orders", 0, action, None, offset, zxid, instance, held, False, True, None)


def claim(session: int, *, registered: bool) -> OwnerChange:
    instance = PastInstance("g", "anne", session) if registered else None
    owner = PastOwner("anne-0", session)
    return OwnerChange(0, 0, session, "g", "orders", 0, OwnerAction.CLAIMED, owner, instance, (), instance, True)


GOOD = [
    begun("anne", 1.0),
    processed("anne", 1.2, 0),
    processed("anne", 1.4, 1),
    told(Kind.COMMITTED, "anne", 1.5, offset=2),
    told(Kind.REVOKED, "anne", 1.6),
    begun("bert", 2.0, offset=2),
    processed("bert", 2.2, 2),
    told(Kind.COMMITTED, "bert", 2.3, offset=3),
    Event(Kind.CALM, 2.4),
    processed("bert", 2.7, 3),
]
WRITTEN = [write(1, ANNE, 2, ANNE), write(2, BERT, 3, BERT)]


def history(
    *more: Event,
    without: tuple[Event, ...] = (),
    writes: list[Commit] = WRITTEN,
    claims: tuple[OwnerChange, ...] = (claim(ANNE, registered=True),),
    **others: Any,
) -> History:
    events = sorted([*(event for event in GOOD if event not in without), *more], key=lambda event: event.time)
    before = [None, *(write.offset for write in writes)]
    log = [*claims, *(write._replace(before=offset) for write, offset in zip(writes, before, strict=False))]
    return History(**{"events": events, "log": log, "partitions": frozenset({AT}), **others})


def rules(history: History, **options: Any) -> list[str]:
    return [violation.rule for violation in judge(history, **{"bound": 1.0, "once": True, **options})]


RESUMED = processed("anne", 9.0, 2, since=1.45)
"""Suspended during a message, the process continued much later."""
REVOKED = told(Kind.REVOKED, "anne", 1.6)
ENDING = Event(Kind.ENDING, 2.05, "nemesis", session=ANNE)
UNAWARE = (processed("anne", 2.6, 2), told(Kind.LOST, "anne", 2.7))
BY_BERT = processed("bert", 2.2, 2)


def changed(*more: Event, without: tuple[Event, ...] = (), **others: Any) -> dict[str, Any]:
    """The good history with more events, or without some."""
    return {"more": more, "without": without, **others}


VIOLATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "two generations at once": (
        "two have one claim",
        changed(processed("anne", 2.9, 2, since=2.3), without=(REVOKED,)),
    ),
    "a zombie that considered itself active": (
        "two have one claim",
        changed(
            processed("anne", 9.0, 2, since=8.9),
            told(Kind.LOST, "anne", 9.5),
            processed("bert", 9.5, 4),
            without=(REVOKED,),
        ),
    ),
    "a message in hand after a release in order": ("two have one claim", changed(RESUMED)),
    "a process that does not notice its end": ("two have one claim", changed(*UNAWARE, without=(REVOKED,))),
    "one that does not notice the end by another client for long": (
        "two have one claim",
        changed(*UNAWARE, ENDING, without=(REVOKED,), session_timeout=0.4),
    ),
    "a commit without the claim": ("commit-not-owner", changed(writes=[*WRITTEN, write(3, ANNE, 4, BERT)])),
    "a claim without the registration": ("claim-unregistered", changed(claims=(claim(ANNE, registered=False),))),
    "an offset that went back": (
        "went-back",
        changed(processed("bert", 2.75, 0), writes=[*WRITTEN, write(3, BERT, 1, BERT)]),
    ),
    "a message that was skipped": ("a message was skipped", changed(without=(processed("anne", 1.2, 0),))),
    "a commit refused for another reason": (
        "refused for a wrong reason",
        changed(told(Kind.REFUSED, "anne", 1.7, offset=2, error="OffsetConflictError: x")),
    ),
    "a failure": ("it failed", changed(told(Kind.FAILED, "anne", 1.7, error="KeyError: 3"))),
    "a partition without a worker at the end": ("not settled", changed(without=(GOOD[-1],))),
    "a message processed twice": ("processed twice", changed(processed("bert", 2.75, 2))),
}


@pytest.mark.parametrize(("rule", "change"), VIOLATIONS.values(), ids=VIOLATIONS)
def test_a_violation_is_found(rule: str, change: dict[str, Any]) -> None:
    found = rules(history(*change.pop("more"), **change))
    assert rule in found
    assert {*found} <= {rule, "a message was skipped", "processed twice"} or rule == "two have one claim"


ALLOWED: dict[str, dict[str, Any]] = {
    "nothing": changed(),
    "a suspended process": changed(RESUMED, told(Kind.LOST, "anne", 9.5), without=(REVOKED,)),
    "a killed process": changed(RESUMED, without=(REVOKED,)),
    "a loss during the release": changed(RESUMED, told(Kind.LOST, "anne", 1.7)),
    "a moment to notice the end by another client": changed(*UNAWARE, ENDING, without=(REVOKED,)),
    **{
        f"a commit refused with {error}": changed(told(Kind.REFUSED, "anne", 1.7, offset=2, error=error))
        for error in ("GenerationEndedError", "SessionLostError: gone", "OutcomeUnknownError")
    },
}


@pytest.mark.parametrize("change", ALLOWED.values(), ids=ALLOWED)
def test_what_is_allowed_is_not_a_violation(change: dict[str, Any]) -> None:
    assert rules(history(*change.pop("more"), **change), once=False) == []


def test_a_lease_spans_a_pause_without_messages() -> None:
    """A generation is one period: if it was active before and after, it was active in between."""
    events = [begun("anne", 1.0), processed("anne", 1.2, 0), processed("anne", 5.0, 1)]
    [lease] = leases(History([*events, begun("bert", 2.0, offset=1), processed("bert", 2.2, 1)]))[AT][:1]
    assert (lease.start, lease.end) == pytest.approx((1.11, 4.9))


# The files


def test_events_are_read_unchanged_and_an_incomplete_line_is_ignored(tmp_path: Path) -> None:
    anne, bert = GOOD[:5], GOOD[5:]
    (tmp_path / "anne.jsonl").write_text("".join(event.line() + "\n" for event in anne) + '{"kind": "comm')
    (tmp_path / "bert.jsonl").write_text("".join(event.line() + "\n" for event in bert))
    assert read(tmp_path) == GOOD


def test_changes_of_an_ensemble_are_those_that_a_majority_has(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(zxid: int, session: int = 7) -> tuple[int, list[NodeChange]]:
        return zxid, [NodeChange(zxid, 0, session, ChangeKind.CREATED, b"billing/ids/%d" % zxid, is_ephemeral=True)]

    one, two, lost, three, other = made(1), made(2), made(3), made(4), made(3, session=8)
    logs = {"a": [one, two, lost, three], "b": [one, other, three], "c": [one, two, other]}
    monkeypatch.setattr(journal, "transactions", lambda data_dir: iter(logs[data_dir.name]))
    events = journal.accepted(map(Path, logs), "billing")
    assert [(event.zxid, event.session) for event in events] == [(1, 7), (2, 7), (3, 8), (4, 7)]
