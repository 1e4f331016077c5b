"""Session files: permissions, damage, locks, several processes, and which session is resumed."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import eventually
from zkgroups import Acl, AclPolicy, Digest, Registry, Sasl, TopicPartition
from zkgroups.exceptions import (
    AlreadyClaimedError,
    AlreadyRegisteredError,
    ConflictError,
    InvalidOptionError,
    NotConnectedError,
    SessionInUseError,
)
from zkgroups.testing import TcpProxy, ZooKeeperServer, zookeeper_server
from zkgroups.zookeeper.instance import MemberInstance
from zkgroups.zookeeper.kazoo_compat import closing
from zkgroups.zookeeper.session import connection

from .conftest import Connect
from .events import expire
from .helpers import ME, OWNER, P0, P1, claimed, holder, kept, kept_session, line, process

pytestmark = pytest.mark.zookeeper


# The file


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


@pytest.mark.parametrize("mask", [0o000, 0o077, 0o777])
def test_only_the_owner_can_read_the_file_regardless_of_the_umask(connect: Connect, file: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        registry = connect(session_file=str(file))
    finally:
        os.umask(before)
    assert mode(file) == 0o600
    registry.close(leave=False)
    assert mode(file) == 0o600


def test_a_file_accessible_to_other_users_is_restricted_with_a_warning(
    connect: Connect, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file.touch()
    file.chmod(0o664)
    connect(session_file=file)
    assert mode(file) == 0o600
    assert "was accessible to other users (664)" in caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of somebody else")
def test_a_file_of_another_user_is_refused(connect: Connect, file: Path) -> None:
    file.touch()
    os.chown(file, 12345, -1)
    with pytest.raises(InvalidOptionError, match=r"belongs to another user \(12345\)"):
        connect(session_file=file)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(b"\0" * 200, id="nothing was written to the disk"),
        pytest.param(b"", id="empty"),
        pytest.param(b'{"zkgroups": 1, "chroot": "/", "pi', id="torn"),
        pytest.param(b'{"zkgroups": 2, "chroot": "CHROOT", "pid": 1, "session": null}', id="of another version"),
        pytest.param(b'{"zkgroups": 1, "chroot": "CHROOT", "pid": 1, "session": "what"}', id="no session"),
        pytest.param(b'{"zkgroups": 1, "chroot": "CHROOT", "pid": 1, "session": 17}', id="a number"),
        pytest.param(b'{"zkgroups": 1, "pid": 1}', id="a field is missing"),
        pytest.param(
            b'{"zkgroups": 1, "pid": 1, "chroot": "CHROOT", "session": "0x' + b"f" * 40 + b":" + b"00" * 16 + b'"}',
            id="a huge session",
        ),
        pytest.param(b'{"zkgroups": ' + b"[" * 4000, id="deep"),
    ],
)
def test_a_damaged_file_is_overwritten(connect: Connect, zookeeper_hosts: str, file: Path, damage: bytes) -> None:
    damage = damage.replace(b"CHROOT", b"/" + zookeeper_hosts.partition("/")[2].encode())
    file.write_bytes(damage.replace(b'"pid": 1', b'"pid": 1, "place": ""'))
    registry = connect(session_file=file)
    assert (registry.resumed, kept_session(file)) == (False, registry.session_id)


@pytest.mark.parametrize("content", [b"hosts: zk1:2181\n", b"{}", b'{"zkgroups": ' + b" " * 5000 + b"1}", b"\xff\xfe"])
def test_a_file_with_other_data_is_refused_and_not_changed(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(InvalidOptionError, match="contains other data"):
        Registry.connect("127.0.0.1:1", session_file=file)
    assert file.read_bytes() == content


def test_a_path_that_is_not_a_regular_file_is_refused_before_connecting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path, reason in [
        (tmp_path, "Is a directory"),
        (tmp_path / "missing" / "session", "No such file or directory"),
        (tmp_path / "fifo", "not a regular file"),
        ("a\0b", "null"),
        (5, "must be the path"),
    ]:
        with pytest.raises(InvalidOptionError, match=reason) as caught:
            Registry.connect("127.0.0.1:1", session_file=path)  # type: ignore[arg-type]
        assert caught.value.option == "session_file"


def test_a_file_that_cannot_be_written_is_refused(zookeeper_hosts: str, file: Path) -> None:
    """Instead of a full disk, the size of files is limited."""
    code = (
        "import resource, signal, sys; from zkgroups import Registry;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0));"
        "Registry.connect(sys.argv[1], session_file=sys.argv[2])"
    )
    ended = subprocess.run([sys.executable, "-c", code, zookeeper_hosts, file], capture_output=True, text=True)
    assert "InvalidOptionError: session_file is" in ended.stderr
    assert "File too large" in ended.stderr


def test_a_later_write_error_is_logged_and_does_not_interrupt_the_client(
    connect: Connect, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    registry = connect(session_file=file)
    opened = registry._opened
    assert opened is not None
    assert opened.file is not None
    assert opened.file._fd is not None
    readable = os.open(file, os.O_RDONLY)
    os.dup2(readable, opened.file._fd)  # as on a disk that was remounted read-only
    os.close(readable)
    with caplog.at_level(logging.ERROR):
        expire(registry)
        assert eventually(lambda: "cannot write session file" in caplog.text)
    assert registry.groups() == []


# Processes

HOLDER = """
import os, signal, sys, warnings
warnings.simplefilter("ignore")
from zkgroups import Registry, TopicPartition
registry = Registry.connect(sys.argv[1], session_file=sys.argv[2], session_timeout=120.0)
me = registry.group("billing").instance("me")
me.register(["orders"])
claim = me.claim(TopicPartition("orders", 0))
print(registry.session_id, flush=True)
"""
WAIT = "sys.stdin.read()\n"


def test_failure_27_a_copy_of_the_file_starts_a_new_session_while_the_first_process_is_alive(
    zookeeper_hosts: str, connect: Connect, file: Path, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A cloned volume, or a backup that was restored to another path, or to the same one."""
    with process(HOLDER + WAIT, zookeeper_hosts, file) as first:
        session = int(line(first))
        copy = file.with_name("copy")
        shutil.copy2(file, copy)
        second = connect(session_file=copy)
        assert (second.resumed, second.session_id != session) == (False, True)
        assert "is a copy" in caplog.text
        copy.unlink()
        shutil.copy2(file, copy)
        copy.rename(file)
        third = connect(session_file=file)
        assert (third.resumed, third.session_id != session) == (False, True)
        assert (first.poll(), holder(raw)) == (None, session)


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_a_second_process_with_the_same_file_is_refused_and_the_first_is_named(
    zookeeper_hosts: str, connect: Connect, file: Path, raw: Any, stopped: bool
) -> None:
    with process(HOLDER + WAIT, zookeeper_hosts, file) as first:
        session = int(line(first))
        if stopped:
            first.send_signal(signal.SIGSTOP)
        in_use = f"{file} is in use by process {first.pid}: give each process a file of its own$"
        with pytest.raises(SessionInUseError, match=in_use) as caught:
            connect(session_file=file)
        assert (caught.value.pid, caught.value.path) == (first.pid, str(file))
        assert isinstance(caught.value, ConflictError)
        assert holder(raw) == session
    with connect(session_file=file) as second:
        assert (second.resumed, second.session_id) == (True, session)
        with pytest.raises(SessionInUseError, match=f"process {os.getpid()}"):
            connect(session_file=file)


FORKING = (
    HOLDER
    + """
pid = os.fork()
if not pid:
    assert not claim.held
    assert registry.session_id is None
    for call in (registry.groups, me.deregister, lambda: claim.commit(1)):
        try:
            call()
        except Exception as error:
            print(type(error).__name__, error, flush=True)
    {child}
    sys.exit()
print("the fork ended with", os.waitpid(pid, 0)[1], flush=True)
claim.commit(7)
print("committed in", registry.session_id, flush=True)
sys.stdin.read()
"""
)


@pytest.mark.parametrize("child", ["registry.close()", "registry.client.stop()"])
def test_a_fork_cannot_end_the_session(
    zookeeper_hosts: str, connect: Connect, file: Path, raw: Any, child: str
) -> None:
    with process(FORKING.replace("{child}", child), zookeeper_hosts, file) as parent:
        session = line(parent)
        said = [line(parent)]
        while said[-1] and not said[-1].startswith("the fork"):
            said.append(line(parent))
        assert said[-1] == "the fork ended with 0"
        assert said[0] == "NotConnectedError the connection to ZooKeeper is closed: connect again"
        assert line(parent) == f"committed in {session}"
        assert str(holder(raw)) == session
        with pytest.raises(SessionInUseError):
            connect(session_file=file)


SURVIVED = (
    HOLDER
    + """
if not os.fork():
    print("forked", os.getpid(), flush=True)
    sys.stdin.read()
    os._exit(0)
sys.stdin.read()
"""
)


def test_the_lock_ends_with_its_process_even_if_a_fork_or_a_child_program_is_alive(
    zookeeper_hosts: str, connect: Connect, file: Path
) -> None:
    with process(SURVIVED, zookeeper_hosts, file) as parent:
        session = int(line(parent))
        fork = int(line(parent).split()[1])
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        registry = connect(session_file=file)
        assert registry.session_id == session
        os.kill(fork, 0)  # the fork is still alive
    code = "import pathlib; print([fd.resolve() for fd in pathlib.Path('/proc/self/fd').iterdir()])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, close_fds=False)
    assert str(file) not in found.stdout


# Resuming a session


def left(connect: Connect, file: Path, **options: Any) -> Registry:
    """A registry with a claim, after it has left its session."""
    registry = connect(session_file=file, **options)
    claimed(registry)
    registry.close(leave=False)
    registry.close()  # ends nothing
    return registry


def test_the_next_registry_resumes_a_session_that_was_not_ended(connect: Connect, file: Path, raw: Any) -> None:
    with connect(session_file=file) as first:
        session = claimed(first)
        assert not first.resumed
        first.close(leave=False)
        with pytest.raises(NotConnectedError, match="closed"):
            first.groups()
    second = connect(session_file=file)
    assert (second.resumed, second.session_id, holder(raw)) == (True, session, session)
    with pytest.raises(InvalidOptionError, match="the same each time"):
        second.group("billing").instance()
    instance = MemberInstance(second.group("billing").paths, second._context, "me")
    assert instance.resume()
    mine, _others = instance.find_owners([P0], ["me"])
    instance.claims_on(mine)[P0].commit(5)
    second.close()
    assert raw.exists(ME) is raw.exists(OWNER) is None
    assert file.read_bytes() == b""


def test_register_takes_over_the_claims_of_its_session_and_claim_returns_them(
    connect: Connect, file: Path, raw: Any
) -> None:
    left(connect, file)
    with connect(session_file=file).group("billing").instance("me") as me:
        assert me.register(["refunds"]) == me.registration()
        assert set(me.claims) == {P0}
        both = me.claim_many([P0, P1])
        both[P0].commit(5)
        for call, error in (
            (lambda: me.claim(P0), AlreadyClaimedError),
            (lambda: me.register([]), AlreadyRegisteredError),
        ):
            with pytest.raises(error):
                call()
    assert raw.exists(ME) is raw.exists(OWNER) is None


def test_after_an_expiry_the_file_contains_the_new_session(connect: Connect, file: Path) -> None:
    registry = connect(session_file=file)
    old = registry.session_id
    expire(registry)
    assert registry.session_id != old
    assert eventually(lambda: kept_session(file) == registry.session_id)


@pytest.mark.parametrize(("before", "after"), [(20.0, 10.0), (10.0, 20.0)])
def test_the_smallest_timeout_that_was_ever_granted_counts(
    connect: Connect, file: Path, caplog: pytest.LogCaptureFixture, before: float, after: float
) -> None:
    """A new leader knows only the timeout at the creation of a session."""
    left(connect, file, session_timeout=before)
    second = connect(session_file=file, session_timeout=after)
    assert (second.resumed, second.session_timeout, kept(file)["timeout"]) == (True, 10.0, min(before, 10.0))
    assert ("was created with a timeout of 10 s" in caplog.text) == (before < after)


def test_a_record_of_an_older_release_starts_a_new_session(
    connect: Connect, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = left(connect, file)
    record = kept(file)
    del record["timeout"]
    file.write_text(json.dumps(record))
    second = connect(session_file=file)
    assert (second.resumed, second.session_id != first.session_id) == (False, True)
    assert "from an older release" in caplog.text


def test_failure_27_a_file_of_another_machine_or_an_earlier_boot_starts_a_new_session(
    connect: Connect, file: Path
) -> None:
    left(connect, file)
    record = kept(file)
    boot, _, inode = record["place"].partition(" ")
    file.write_text(json.dumps(record | {"place": f"{boot[::-1]} {inode}"}))
    second = connect(session_file=file)
    assert (second.resumed, kept_session(file)) == (False, second.session_id)


def test_a_session_of_another_chroot_is_not_resumed(
    zookeeper: Any, connect: Connect, file: Path, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    left(connect, file)
    session = holder(raw)
    second = connect(zookeeper.address, session_file=file)
    assert (second.resumed, holder(raw), kept_session(file)) == (False, session, second.session_id)
    assert "is not resumed" in caplog.text


# Lost connections


@pytest.fixture
def behind(proxy: TcpProxy, zookeeper_hosts: str) -> str:
    return proxy.address + "/" + zookeeper_hosts.partition("/")[2]


@pytest.mark.parametrize("can_connect", [True, False])
def test_a_session_whose_end_was_not_confirmed_is_ended_by_the_next_process_and_not_resumed(
    connect: Connect,
    proxy: TcpProxy,
    behind: str,
    file: Path,
    raw: Any,
    monkeypatch: pytest.MonkeyPatch,
    can_connect: bool,
) -> None:
    """The request to end it may arrive later."""
    monkeypatch.setattr(closing, "CLOSE_TIMEOUT", 0.5)
    registry = connect(behind, session_file=file)
    session = claimed(registry)
    proxy.drop()
    registry.close()
    assert (kept_session(file), holder(raw)) == (None, session)

    def cannot_connect(*_: object) -> bool:
        raise NotConnectedError("no answer")

    if not can_connect:
        monkeypatch.setattr(connection, "end_session", cannot_connect)
    second = connect(session_file=file)
    assert kept_session(file) == second.session_id != session
    assert (raw.exists(OWNER) is None) == can_connect


@pytest.mark.parametrize("broken", ["drop", "refuse", "cut"])
@pytest.mark.parametrize("leave", [False, True])
def test_a_session_can_be_left_while_disconnected(
    connect: Connect, proxy: TcpProxy, behind: str, file: Path, broken: str, leave: bool
) -> None:
    registry = connect(behind, session_file=file)
    session = claimed(registry)
    getattr(proxy, broken)()
    if broken == "refuse":
        proxy.cut()
        assert eventually(lambda: not registry.client.connected)
    registry.close(leave=leave and broken == "refuse")  # it cannot be ended without a connection
    proxy.heal()
    with connect(session_file=file) as second:
        assert second.session_id == session
        assert second.group("billing").owner(P0) is not None


@pytest.mark.parametrize("login", ["digest", "sasl"])
def test_a_session_is_resumed_with_a_login(zookeeper_hosts: str, file: Path, login: str) -> None:
    sasl = zookeeper_server.Sasl({"alice": "s3cret"})
    options: dict[str, Any] = {"auth": [Sasl("alice", "s3cret")], "session_file": file}
    if login == "digest":
        only_alice = AclPolicy(ephemerals=[Acl.digest("alice", "s3cret")])
        options |= {"auth": [Digest("alice", "s3cret")], "acl": only_alice}
    with ZooKeeperServer(sasl=sasl) as server:
        hosts = zookeeper_hosts if login == "digest" else server.address
        with Registry.connect(hosts, **options) as first:
            session = claimed(first)
            first.close(leave=False)
        with Registry.connect(hosts, **options) as second:
            assert (second.resumed, second.session_id) == (True, session)
            me = MemberInstance(second.group("billing").paths, second._context, "me")
            assert me.resume()
            assert TopicPartition("orders", 0) in me.find_owners([P0], ["me"])[0]
