"""Hostile data directories with valid checksums give a value or a typed error, quickly and in little memory."""

from __future__ import annotations

import gzip
import os
import random
import signal
import subprocess
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct, pack
from types import FrameType

import pytest

from zkgroups.core.history.events import violations
from zkgroups.core.selection import Selection
from zkgroups.core.table_columns import Table
from zkgroups.core.znodes.paths import Part
from zkgroups.datadir.data_dir import DataDir
from zkgroups.datadir.files import END_OF_NODES, HEADER
from zkgroups.datadir.history import HistoryReader, LogGap
from zkgroups.datadir.scan import STAT
from zkgroups.datadir.transaction_log import CLOSE_SESSION, CREATE, CREATE_TTL, DELETE, MULTI, SET_ACL, SET_DATA
from zkgroups.exceptions import DamagedDataError, NotFoundError
from zkgroups.tables.data_dir_reader import count, read_batches
from zkgroups.tables.source_options import SourceOptions
from zkgroups.zookeeper.reading import tree_walk

from ..seeds import seeds

PATIENCE = 30
"""In seconds; no case takes a tenth of it."""
MEMORY = 2**28
"""The memory limit in bytes, in addition to that of the started process."""
MUTATIONS = 900
NASTY = (*(pack(">i", number) for number in (-1, -5, -76, 0, 1, 2**31 - 1, -(2**31))), b"\xc3")

_HEAD = Struct(">qiqqi")


def block(data: bytes) -> bytes:
    return pack(">i", len(data)) + data


OPEN = pack(">ii", 1, 31) + block(b"world") + block(b"anyone")


def node(path: bytes, data: bytes = b"", *, session: int = 0) -> bytes:
    return block(path) + block(data) + pack(">q", 1) + STAT.pack(1, 1, 1, 1, 0, 0, 0, session, 1)


TREE = (
    node(b""),
    node(b"/consumers"),
    node(b"/consumers/g"),
    node(b"/consumers/g/ids"),
    node(b"/consumers/g/ids/me", b"{}", session=7),
    node(b"/consumers/g/owners"),
    node(b"/consumers/g/owners/t"),
    node(b"/consumers/g/owners/t/0", b"me-0", session=7),
    node(b"/consumers/g/offsets"),
    node(b"/consumers/g/offsets/t"),
    node(b"/consumers/g/offsets/t/0", b"5"),
    node(b"/consumers/h"),
    node(b"/consumers/h/offsets"),
    node(b"/consumers/h/offsets/t"),
    node(b"/consumers/h/offsets/t/0", b"6"),
)


def body(*nodes: bytes, sessions: bytes = pack(">iqi", 1, 7, 6000), acls: bytes = pack(">iq", 1, 1) + OPEN) -> bytes:
    return HEADER + bytes(8) + sessions + acls + b"".join(nodes) + END_OF_NODES


def sealed(body: bytes) -> bytes:
    return body + pack(">q", zlib.adler32(body)) + block(b"/")


def operation(path: bytes, *rest: bytes) -> bytes:
    return block(path) + b"".join(rest)


OFFSET = b"/consumers/g/offsets/t/%d"
OPERATIONS = (
    (CREATE, operation(OFFSET % 1, block(b"1"), OPEN, b"\1", pack(">i", 2))),
    (SET_DATA, operation(OFFSET % 0, block(b"77"), pack(">i", 1))),
    (CREATE_TTL, operation(OFFSET % 2, block(b"2"), OPEN, pack(">iq", 3, 1000))),
    (SET_ACL, operation(OFFSET % 2, OPEN, pack(">i", 1))),
    (MULTI, pack(">i", 1) + pack(">i", SET_DATA) + block(operation(OFFSET % 2, block(b"3"), pack(">i", 1)))),
    (DELETE, operation(OFFSET % 2)),
    (CLOSE_SESSION, pack(">i", 1) + block(b"/consumers/g/ids/me")),
)


def record(zxid: int, kind: int, rest: bytes) -> bytes:
    return _HEAD.pack(7, 0, zxid, 1, kind) + rest


RECORDS = tuple(record(zxid, *each) for zxid, each in enumerate(OPERATIONS, 2))


def framed(*records: bytes) -> bytes:
    frames = (pack(">qi", zlib.adler32(each), len(each)) + each + b"B" for each in records)
    return b"ZKLG\0\0\0\2" + bytes(8) + b"".join(frames) + bytes(64)


def directory(folder: Path, snapshot: bytes, log: bytes = framed(*RECORDS), *, suffix: str = "") -> DataDir:
    files = folder / "version-2"
    files.mkdir(exist_ok=True)
    (files / f"snapshot.1{suffix}").write_bytes(snapshot)
    (files / "log.2").write_bytes(log)
    return DataDir(str(folder))


def read(data: DataDir) -> object:
    """Return the value, read in each way, or the error. An error must name a file that exists."""
    read_history(data)
    options = [SourceOptions(data_dir=data.folder, table=table) for table in Table]
    try:
        state = data.state()
        nodes = sorted(map(str, tree_walk.nodes(data.groups(state, set(Part)).blocks())))
        counts = count(options[0], state)
        rows = [sum(batch.num_rows for batch in read_batches(each, Selection(), state)) for each in options]
    except NotFoundError as error:
        return error
    except DamagedDataError as error:
        damaged = error
    else:
        return nodes, counts, rows
    assert Path(damaged.path).exists(), f"the damaged file is not named: {damaged}"
    return damaged


def read_history(data: DataDir) -> None:
    """Read all events, and check them. Damaged logs are no error, but a gap."""
    try:
        for item in HistoryReader(data).items():
            if not isinstance(item, LogGap):
                deque(violations(item), maxlen=0)
    except (NotFoundError, DamagedDataError):
        pass


@contextmanager
def soon() -> Iterator[None]:
    """Fail instead of waiting forever."""

    def end(_signal: int, _frame: FrameType | None) -> None:
        raise AssertionError("it does not end")

    usual = signal.signal(signal.SIGALRM, end)
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, usual)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    made.mkdir()
    return made


def test_undamaged_files_are_read_correctly(folder: Path) -> None:
    nodes, counts, rows = read(directory(folder, sealed(body(*TREE))))  # type: ignore[misc]
    assert (counts.groups, counts.offsets, counts.members, rows) == (2, 2, 0, [2, 0, 0])
    assert any("77" in each for each in nodes)


@pytest.mark.parametrize("seed", seeds(3))
def test_any_mutation_with_valid_checksums_quickly_gives_a_value_or_a_typed_error(folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    whole = body(*TREE)
    values = errors = 0
    for _ in range(MUTATIONS // 3):
        damaged, records = whole, list(RECORDS)
        for _ in range(rng.randint(1, 2)):
            if rng.random() < 0.5:
                damaged = mutated(rng, damaged, keep=len(HEADER))
            else:
                which = rng.randrange(len(records))
                records[which] = mutated(rng, records[which], keep=0)
        with soon():
            found = read(directory(folder, sealed(damaged), framed(*records)))
        errors += isinstance(found, Exception)
        values += not isinstance(found, Exception)
    assert values > MUTATIONS // 30
    assert errors > MUTATIONS // 30


def mutated(rng: random.Random, data: bytes, *, keep: int) -> bytes:
    at, nasty = rng.randrange(keep, len(data)), rng.choice([*NASTY, rng.randbytes(rng.randint(1, 8))])
    over, between = data[:at] + nasty + data[at + len(nasty) :], data[:at] + nasty + data[at:]
    return rng.choice([over, between, data[:at] + data[at + 1 :]])


HUGE = 2**31 - 1
COUNTS = (-76, -5, -1, HUGE)


@pytest.mark.parametrize("number", COUNTS)
@pytest.mark.parametrize("what", ["sessions", "acls", "entries", "scheme", "path", "data"])
def test_a_wrong_number_in_a_snapshot_causes_no_loop(folder: Path, what: str, number: int) -> None:
    false = pack(">i", number)
    snapshot = {
        "sessions": lambda: body(*TREE, sessions=false),
        "acls": lambda: body(*TREE, acls=false),
        "entries": lambda: body(*TREE, acls=pack(">iq", 1, 1) + false),
        "scheme": lambda: body(*TREE, acls=pack(">iqii", 1, 1, 1, 31) + false),
        "path": lambda: body(*TREE, false, bytes(100)),
        "data": lambda: body(*TREE, block(b"/consumers/x"), false, bytes(68)),
    }[what]()
    with soon():
        found = read(directory(folder, sealed(snapshot)))
    may_be_read = number == -1 if what == "data" else number < 0
    assert isinstance(found, DamagedDataError) or may_be_read


@pytest.mark.parametrize("number", COUNTS)
@pytest.mark.parametrize("kind", [CREATE, DELETE, SET_DATA, SET_ACL, MULTI, CLOSE_SESSION])
def test_a_wrong_number_in_a_transaction_causes_no_loop(folder: Path, kind: int, number: int) -> None:
    false = pack(">i", number)
    rests = {CLOSE_SESSION: pack(">i", HUGE) + false * 20, SET_DATA: block(OFFSET % 0) + false}
    with soon():
        found = read(directory(folder, sealed(body(*TREE)), framed(record(2, kind, rests.get(kind, false)))))
    assert isinstance(found, DamagedDataError) or number == -1 or kind == MULTI


@pytest.mark.parametrize("where", ["snapshot.9", "log.9"])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "loop"])
def test_only_regular_files_are_read(folder: Path, where: str, kind: str) -> None:
    data = directory(folder, sealed(body(*TREE)))
    path = folder / "version-2" / where
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "device" else path)
    with soon():
        found = read(data)
    if where == "snapshot.9":
        assert not isinstance(found, Exception)
        assert any(f"{path} is damaged" in note for note in data.state().notes)
    else:
        assert isinstance(found, NotFoundError)
        assert str(path) in str(found)


@pytest.mark.parametrize(
    "path", [b"/consumers/\xff", b"/consumers/i/offsets/\xc3/0", b"/consumers/i/offsets/t/\xed\xa0\x80"]
)
@pytest.mark.parametrize("is_logged", [False, True])
def test_a_name_that_is_not_utf_8_is_damage(folder: Path, path: bytes, is_logged: bool) -> None:
    made = [] if is_logged else [node(path)]
    log = [record(2, CREATE, operation(path, block(b"1"), OPEN, b"\0", pack(">i", 2)))] if is_logged else RECORDS
    found = read(directory(folder, sealed(body(*TREE, *made)), framed(*log)))
    assert isinstance(found, DamagedDataError)
    assert "a node name is not UTF-8" in str(found)


def test_nonconsecutive_nodes_of_a_group_are_damage(folder: Path) -> None:
    again = node(b"/consumers/g/offsets/u/0", b"1")
    found = read(directory(folder, sealed(body(*TREE, again))))
    assert isinstance(found, DamagedDataError)
    assert "the nodes of group 'g' are not consecutive" in str(found)


READ_IN_LITTLE = f"""
import resource, sys
from zkgroups.core.znodes.paths import Part
from zkgroups.datadir.data_dir import DataDir
from zkgroups.exceptions import DamagedDataError
most = {MEMORY} + resource.getpagesize() * int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (most, most))
data = DataDir(sys.argv[1])
try:
    print(sum(block.count for block in data.groups(data.state(), set(Part)).blocks()))
except DamagedDataError as error:
    print(error)
"""


def zipped_zeros(length: int) -> bytes:
    """Return a gzip member with zeros: 4 MiB, compressed once and repeated."""
    return gzip.compress(bytes(2**22), 9) * (length >> 22)


BOMBS: dict[str, tuple[Callable[[], bytes], str]] = {
    "zeros": (lambda: gzip.compress(HEADER + bytes(8)) + zipped_zeros(2**30), "it has no snapshot to start from"),
    "random data": (
        lambda: gzip.compress(sealed(body(*TREE))) + zipped_zeros(2**30),
        "it has no snapshot to start from",
    ),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused_in_bounded_memory(folder: Path, bomb: str) -> None:
    made, said = BOMBS[bomb]
    data = directory(folder, made(), framed(record(5, *OPERATIONS[0])), suffix=".gz")
    assert read_in_little(data).startswith(f"{folder}: {said}")


def test_large_nodes_are_yielded_in_small_blocks(folder: Path) -> None:
    large = (node(OFFSET % partition, bytes(2**22)) for partition in range(1, 41))
    data = directory(folder, sealed(body(*TREE[:10], *large)), framed(), suffix="")
    assert read_in_little(data) == "42\n"


def read_in_little(data: DataDir) -> str:
    command = [sys.executable, "-c", READ_IN_LITTLE, data.folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout
