"""The history in the logs of a server under load equals that of a second implementation, also if it is read in parts.

If files are missing, it is the same as far as it is known, and says where it is not.
"""

from __future__ import annotations

import random
import shutil
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.seeds import seeds
from tests.waiting import eventually
from zkgroups.core.history.changes import Moment, Period
from zkgroups.core.history.events import Commit, GroupChange, HistoryEvent, MemberChange, OwnerChange
from zkgroups.core.history.tracker import NEVER
from zkgroups.datadir.data_dir import DataDir
from zkgroups.datadir.files import DataFile, check_snapshot
from zkgroups.datadir.history import GapReason, HistoryItem, HistoryReader, LogGap, history_files, log_parts
from zkgroups.exceptions import NotFoundError

from .small_directories import named, records, server_of, under_load, written, zxid_of

CREATE, DELETE, SET, MULTI, CREATE2, CONTAINER, TTL, CLOSE = 1, 2, 5, 14, 15, 19, 21, -11
CREATES: Final = (CREATE, CREATE2, CONTAINER, TTL)
FAILED: Final = -1

Shown = tuple[Any, ...]
"""An event as a plain tuple."""


def shown(event: HistoryEvent) -> Shown:
    """Return an event of the library in the form of this module."""
    instance = event.instance.id if event.instance else None
    head = (event.zxid, event.time_ms, event.session, event.group)
    match event:
        case Commit():
            owner = (event.owner.id, event.owner.session) if event.owner else None
            at = (event.topic, event.partition)
            return (*head, *at, event.action.value, event.before, event.offset, event.version, instance, owner)
        case OwnerChange():
            at = (event.topic, event.partition)
            return (*head, *at, event.action.value, event.owner.id, event.owner.session, event.owner.claimed_zxid)
        case MemberChange():
            return (*head, event.action.value, event.member.id, event.member.session, event.member.registered_zxid)
        case GroupChange():
            return (*head, event.action.value, instance)


class Step(NamedTuple):
    """One operation of a transaction."""

    zxid: int
    time_ms: int
    session: int
    kind: int
    path: str = ""
    data: bytes = b""
    version: int = 0
    is_ephemeral: bool = False
    is_expired: bool = False


class _Reader:
    """The parts of Jute that the log uses: numbers in network byte order, texts and bytes after their length."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        [found] = struct.unpack_from(f">{form}", self._data, self._at)
        self._at += struct.calcsize(f">{form}")
        return int(found)

    def block(self) -> bytes:
        length = max(0, self.number("i"))
        self._at += length
        return self._data[self._at - length : self._at]

    def text(self) -> str:
        return self.block().decode()


def transactions(data_dir: Path) -> Iterator[list[Step]]:
    """Every transaction in the logs of a server."""
    for file in sorted((data_dir / "version-2").glob("log.*"), key=lambda file: int(file.suffix[1:], 16)):
        data, at = file.read_bytes(), 16
        while at + 12 <= len(data):
            length = int.from_bytes(data[at + 8 : at + 12])
            end = at + 12 + length
            if not length or data[end : end + 1] != b"B":
                break
            yield list(_steps(_Reader(data[at + 12 : end])))
            at = end + 1


def _steps(reader: _Reader) -> Iterator[Step]:
    session, request, zxid, time_ms, kind = (reader.number(form) for form in "qiqqi")
    parts = [(kind, reader)]
    if kind == MULTI:
        parts = [(reader.number("i"), _Reader(reader.block())) for _ in range(reader.number("i"))]
    if any(kind == FAILED for kind, _ in parts):
        return
    for kind, part in parts:
        if kind in CREATES:
            path, data = part.text(), part.block()
            for _ in range(part.number("i")):  # the ACL
                part.number("i"), part.text(), part.text()
            yield Step(
                zxid, time_ms, session, kind, path, data, 0, kind in (CREATE, CREATE2) and bool(part.number("b"))
            )
        elif kind == SET:
            path, data = part.text(), part.block()
            yield Step(zxid, time_ms, session, kind, path, data, part.number("i"))
        elif kind == DELETE:
            yield Step(zxid, time_ms, session, kind, part.text())
        elif kind == CLOSE:
            yield Step(zxid, time_ms, session, kind, is_expired=request == 0)


@dataclass
class PlainHistory:
    """The tree below a root, with the transaction that created each node."""

    root: str = "/consumers"
    tree: dict[str, Step] = field(default_factory=dict)

    def events(self, data_dir: Path) -> Iterator[Shown]:
        """Yield all events of complete logs."""
        for steps in transactions(data_dir):
            found: list[tuple[Step, Shown]] = []
            for step in steps:
                for event in list(self._events(step)):
                    self._add(found, step, event)
            yield from (event for _, event in found)

    def _add(self, found: list[tuple[Step, Shown]], step: Step, event: Shown) -> None:
        """Add an event. A write of a node that the transaction has created or written before replaces that event."""
        before = [n for n, (earlier, _) in enumerate(found) if earlier.path == step.path != ""]
        if step.kind == SET and before and found[before[-1]][0].kind != DELETE and "offsets" in step.path:
            first = found[before[-1]][1]
            found[before[-1]] = (step, (*event[:6], first[6], first[7], *event[8:]))
        else:
            found.append((step, event))

    def _events(self, step: Step) -> Iterator[Shown]:
        if step.kind == CLOSE:
            mine = [path for path, made in self.tree.items() if made.is_ephemeral and made.session == step.session]
            for path in sorted(mine, key=lambda path: ("/ids/" in path, path)):
                yield from self._event(step, path, "expired" if step.is_expired else "closed")
                del self.tree[path]
        elif step.path.startswith(f"{self.root}/"):
            before = self.tree.get(step.path)
            if step.kind in CREATES:
                self.tree[step.path] = step
            elif step.kind == SET and before is not None:
                self.tree[step.path] = before._replace(data=step.data, version=step.version)
            yield from self._event(step, step.path, None, before)
            if step.kind == DELETE:
                self.tree.pop(step.path, None)

    def _event(self, step: Step, path: str, end: str | None, before: Step | None = None) -> Iterator[Shown]:
        names = path.removeprefix(f"{self.root}/").split("/")
        head = (step.zxid, step.time_ms, step.session, names[0])
        node, is_own = self.tree.get(path), False
        if node is not None:
            is_own = node.is_ephemeral and node.session == step.session
        kind = "created" if step.kind in CREATES else "written" if step.kind == SET else "deleted"
        match names:
            case [group] if kind != "written":
                yield (*head, kind, self._instance(step.session, group))
            case [_, "ids", id] if node is not None:
                words = {
                    "created": "registered",
                    "written": "changed",
                    "deleted": "deregistered" if is_own else "removed",
                }
                yield (*head, end or words[kind], id, node.session if node.is_ephemeral else 0, node.zxid)
            case [_, "owners", topic, number] if node is not None and number.isdigit():
                words = {"created": "claimed", "written": "changed", "deleted": "released" if is_own else "taken"}
                session = node.session if node.is_ephemeral else 0
                yield (*head, topic, int(number), end or words[kind], node.data.decode(), session, node.zxid)
            case [group, "offsets", topic, number] if number.isdigit():
                words = {"created": "created", "written": "committed", "deleted": "deleted"}
                offset, version = (None, -1) if kind == "deleted" else (_offset(step.data), step.version)
                owner = self.tree.get(f"{self.root}/{group}/owners/{topic}/{number}")
                held = (owner.data.decode(), owner.session if owner.is_ephemeral else 0) if owner else None
                last = _offset(before.data) if before else None
                instance = self._instance(step.session, group)
                yield (*head, topic, int(number), words[kind], last, offset, version, instance, held)

    def _instance(self, session: int, group: str) -> str | None:
        ids = f"{self.root}/{group}/ids/"
        mine = [path for path, made in self.tree.items() if made.session == session and path.startswith(ids)]
        return next((path.removeprefix(ids) for path in mine if self.tree[path].is_ephemeral), None)


def _offset(data: bytes) -> int | None:
    return int(data) if data.isdigit() else None


pytestmark = pytest.mark.zookeeper

OFTEN = ("-Dzookeeper.snapCount=400", "-Dzookeeper.preAllocSize=512")
UNDER_LOAD = 1500


@dataclass(frozen=True)
class Recorded:
    """A data directory of a killed server, and its history."""

    folder: Path
    history: list[Shown]

    @property
    def data(self) -> DataDir:
        return DataDir(str(self.folder))

    def copy(self, folder: Path) -> Recorded:
        shutil.copytree(self.folder, folder)
        return Recorded(folder, self.history)


@pytest.fixture(scope="module", params=["3.4.14", None], ids=["3.4", "3.9"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """The directory of a server with all of its files."""
    folder = tmp_path_factory.mktemp("whole") / "data"
    server = server_of(folder, request.param, *OFTEN)
    with server, under_load(server) as writers:
        assert eventually(lambda: sum(writer.written for writer in writers) > UNDER_LOAD)
        server.kill()
    return Recorded(folder, list(PlainHistory().events(folder)))


@pytest.fixture
def recorded(whole: Recorded, tmp_path: Path) -> Recorded:
    """A copy of the directory for this test."""
    return whole.copy(tmp_path / "data")


def read(data: DataDir, **options: object) -> list[HistoryItem]:
    return list(HistoryReader(data, **options).items())  # type: ignore[arg-type]


def events_in(items: Iterable[HistoryItem]) -> list[HistoryEvent]:
    return [item for item in items if not isinstance(item, LogGap)]


def gaps_in(items: Iterable[HistoryItem]) -> list[LogGap]:
    return [item for item in items if isinstance(item, LogGap)]


def files(recorded: Recorded, kind: str) -> list[Path]:
    return sorted((recorded.folder / "version-2").glob(f"{kind}.*"), key=named)


def test_the_history_of_complete_logs_equals_that_of_a_second_implementation(whole: Recorded) -> None:
    found = read(whole.data)
    assert gaps_in(found) == []
    assert [shown(event) for event in events_in(found)] == whole.history
    kinds = Counter(type(event) for event in events_in(found))
    assert set(kinds) == {Commit, OwnerChange, MemberChange, GroupChange}
    assert all(event.is_complete for event in events_in(found))
    assert not any(event.gap for event in events_in(found) if isinstance(event, Commit))


def test_parts_of_the_logs_have_the_same_events(whole: Recorded) -> None:
    found, logs = read(whole.data), history_files(whole.data).logs
    for count in (3, 1000):
        parts = log_parts(logs, count)
        assert [item for part in parts for item in read(whole.data, part=part)] == found
    assert len(parts) == len(logs) > 7


def test_a_group_and_a_period_have_the_same_events(whole: Recorded) -> None:
    found = events_in(read(whole.data))
    assert read(whole.data, group="g1") == [event for event in found if event.group == "g1"]
    chosen = {"g1", "g10", "g7"}
    assert read(whole.data, has_group=chosen.__contains__) == [event for event in found if event.group in chosen]
    middle, later = found[len(found) // 3], found[len(found) // 2]
    zxids = Period(Moment(zxid=middle.zxid), Moment(zxid=later.zxid))
    assert read(whole.data, period=zxids) == [each for each in found if middle.zxid <= each.zxid <= later.zxid]
    times = Period(Moment(time_ms=middle.time_ms), Moment(time_ms=later.time_ms))
    assert read(whole.data, period=times) == [each for each in found if middle.time_ms <= each.time_ms <= later.time_ms]


# Missing files


@pytest.mark.parametrize("seed", seeds(4))
def test_with_any_files_missing_the_history_is_the_same_or_unknown(recorded: Recorded, seed: int) -> None:
    rng = random.Random(seed)
    every = [*files(recorded, "snapshot"), *files(recorded, "log")]
    for file in rng.sample(every, rng.randint(1, len(every) - 1)):
        file.unlink()
    check_the_rest(recorded)


@pytest.mark.parametrize("kept", [1, 3])
def test_after_a_purge_the_history_is_the_same_or_unknown(recorded: Recorded, kept: int) -> None:
    """ZooKeeper keeps some snapshots, and all logs that may have transactions after the first of them."""
    snapshots = [each for each in files(recorded, "snapshot") if check_snapshot(DataFile(each, named(each)))]
    logs = files(recorded, "log")
    oldest = named(snapshots[-kept])
    first_log = max(named(log) for log in logs if named(log) <= oldest)
    unneeded = [each for each in files(recorded, "snapshot") if each not in snapshots[-kept:]]
    for file in (*unneeded, *(log for log in logs if named(log) < first_log)):
        file.unlink()
    [gap] = check_the_rest(recorded)
    assert (gap.reason, gap.after, gap.before) == (GapReason.PURGED, 0, first_log)
    intact = check_snapshot(DataFile(snapshots[-kept], oldest))
    assert intact is not None
    if intact.digest is not None:
        assert gap.complete_from == intact.digest.zxid + 1
    else:
        assert gap.complete_from == (NEVER if kept == 1 else named(snapshots[-kept + 1]))


def test_repeated_transactions_are_reported_and_left_out(recorded: Recorded) -> None:
    """After the restore of a backup, a server writes transactions with numbers that an earlier log has."""
    log, later = files(recorded, "log")[2:4]
    *_, (data, at) = records(log)
    both = later.read_bytes()
    later.with_name(f"log.{zxid_of(data, at):x}").write_bytes(both[:16] + data[at : written(data)] + both[16:])
    later.unlink()
    found = read(recorded.data)
    assert [shown(event) for event in events_in(found)] == recorded.history
    assert [(gap.reason, gap.before) for gap in gaps_in(found)] == [(GapReason.REPEATED, zxid_of(data, at))]
    parts = log_parts(history_files(recorded.data).logs, 1000)
    assert [item for part in parts for item in read(recorded.data, part=part)] == found


@pytest.mark.parametrize("number", [0, 2, -1], ids=["first", "middle", "last"])
def test_a_damaged_log_is_reported_also_in_parts(recorded: Recorded, number: int) -> None:
    logs = files(recorded, "log")
    with logs[number].open("r+b") as stream:
        stream.write(b"DAMAGED!")
    [gap] = gaps_in(found := read(recorded.data))
    before = [zxid_of(data, at) for log in logs[:number] for data, at in records(log)][-1:] or [0]
    after = None if number == -1 else named(logs[number + 1])
    assert (gap.reason, gap.after, gap.before) == (GapReason.DAMAGED, *before, after)
    left = [event for event in recorded.history if event[0] <= gap.after or (after is not None and event[0] >= after)]
    seen = {event.zxid for event in events_in(found)}
    assert seen <= {event[0] for event in left}
    assert all(is_end(event) for event in left if event[0] not in seen)
    parts = log_parts(history_files(recorded.data).logs, 1000)
    in_parts = [item for part in parts for item in read(recorded.data, part=part)]
    assert events_in(in_parts) == events_in(found)
    assert [(each.reason, each.after, each.before) for each in gaps_in(in_parts)] == [
        (gap.reason, gap.after, gap.before)
    ]


def check_the_rest(recorded: Recorded) -> Sequence[LogGap]:
    """Compare what can be read with the whole history, and in parts with itself. Return the gaps."""
    try:
        found = read(recorded.data)
    except NotFoundError:
        assert not files(recorded, "log")
        return []
    events, gaps = events_in(found), gaps_in(found)
    is_covered = covered(recorded)
    expected = by_transaction(event for event in recorded.history if is_covered(event[0]))
    for zxid, those in by_transaction(events, lambda event: event.zxid).items():
        true = expected.pop(zxid)
        if len(those) < len(true):
            true = without_unknown_ends(true, those)
        for event, each in zip(those, true, strict=True):
            check_event(event, each)
    assert all(is_end(event) for true in expected.values() for event in true)
    parts = log_parts(history_files(recorded.data).logs, 1000)
    in_parts = [item for part in parts for item in read(recorded.data, part=part)]
    assert events_in(in_parts) == events
    assert [(gap.after, gap.before) for gap in gaps_in(in_parts)] == [(gap.after, gap.before) for gap in gaps]
    return gaps


def by_transaction(events: Iterable[Any], zxid: Callable[[Any], int] = itemgetter(0)) -> dict[int, list[Any]]:
    return {key: list(those) for key, those in groupby(events, zxid)}


def is_end(event: Shown) -> bool:
    """Before 3.6, the end of a session does not list its nodes. They are not in the history if they are not known."""
    return event[6 if len(event) == 10 else 4] in ("closed", "expired")


def without_unknown_ends(true: list[Shown], found: Sequence[HistoryEvent]) -> list[Shown]:
    assert all(map(is_end, true))
    known = {place_of(shown(event)) for event in found}
    assert not any(event.is_complete for event in found)
    return [event for event in true if place_of(event) in known]


def place_of(event: Shown) -> Shown:
    """Return the partition of an owner node, or the id of a registration."""
    return event[3:6] if len(event) == 10 else (event[3], event[5])


def covered(recorded: Recorded) -> Callable[[int], bool]:
    """Return whether a transaction is in a log that is left."""
    return {zxid_of(data, at) for log in files(recorded, "log") for data, at in records(log)}.__contains__


def check_event(event: HistoryEvent, true: Shown) -> None:
    """All that an event has is true. What it does not have is unknown, and the event is then not complete."""
    found = shown(event)
    match event:
        case Commit():
            assert (*found[:7], *found[8:10]) == (*true[:7], *true[8:10])
            assert event.before == true[7] or (event.gap and event.before is None)
            assert_known(event, found[10:], true[10:])
        case OwnerChange():
            assert found[:6] == true[:6]
            assert_known(event, found[7:], true[7:], unknown=("", None, 0))
            assert event.action == true[6] or event.action == "deleted"
        case MemberChange():
            assert (*found[:4], found[5]) == (*true[:4], true[5])
            assert_known(event, found[6:], true[6:], unknown=(None, 0))
            assert event.action == true[4] or event.action == "deleted"
        case GroupChange():
            assert found[:5] == true[:5]
            assert_known(event, found[5:], true[5:])


def assert_known(event: HistoryEvent, found: Shown, true: Shown, unknown: Shown = (None, None, None)) -> None:
    for value, true_value, without in zip(found, true, unknown[: len(true)], strict=True):
        assert value == true_value or (value == without and not event.is_complete), (event, true)
