"""Session files: resuming, locking, damaged files, copies, logins and forks."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from tests.testing.waiting import eventually
from zkgroups import Acl, AclPolicy, Digest, Registry, Sasl, SessionCredentials, Tls, TopicPartition
from zkgroups.exceptions import (
    AlreadyClaimedError,
    AlreadyRegisteredError,
    ConflictError,
    InvalidOptionError,
    NotConnectedError,
    SessionInUseError,
)
from zkgroups.testing import TcpProxy, ZooKeeperServer
from zkgroups.testing import server as server_side
from zkgroups.zookeeper.member_instance import MemberInstance

from .conftest import Connect
from .events import expire

pytestmark = pytest.mark.zookeeper

P0 = TopicPartition("orders", 0)
SECRET = "s3cret"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "session"


def kept(file: Path) -> Any:
    """The session in the file."""
    return json.loads(file.read_bytes())


def kept_session(file: Path) -> int | None:
    text = kept(file)["session"]
    return None if text is None else SessionCredentials.load(text).session_id


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def claimed(registry: Registry) -> int | None:
    """Register and claim. Return the session of the claim."""
    me = registry.group("billing").instance("me")
    me.register(["orders"])
    me.claim(P0)
    return registry.session_id


def holder(raw: Any) -> int:
    return int(raw.get("/consumers/billing/owners/orders/0")[1].ephemeralOwner)


# Resuming a session


def test_the_next_registry_resumes_a_session_that_was_not_ended(connect: Connect, file: Path, raw: Any) -> None:
    first = connect(session_file=file)
    session = claimed(first)
    assert not first.resumed
    first.close(leave=False)
    second = connect(session_file=file)
    assert (second.resumed, second.session_id, holder(raw)) == (True, session, session)
    instance = MemberInstance(second.group("billing").paths, second._context, "me")
    assert instance.resume()
    mine, _others = instance.find_owners([P0], ["me"])
    instance.claims_on(mine)[P0].commit(5)
    assert holder(raw) == session


def test_register_takes_over_the_claims_of_its_session_and_claim_returns_them(
    connect: Connect, file: Path, raw: Any
) -> None:
    first = connect(session_file=file)
    session = claimed(first)
    first.close(leave=False)
    group = connect(session_file=file).group("billing")
    with group.instance("me") as me:
        assert me.register(["refunds"]) == me.registration()
        assert set(me.claims) == {P0}
        both = me.claim_many([P0, TopicPartition("orders", 1)])
        both[P0].commit(5)
        assert holder(raw) == session
        with pytest.raises(AlreadyClaimedError):
            me.claim(P0)
        with pytest.raises(AlreadyRegisteredError):
            me.register(["orders"])
    assert raw.exists("/consumers/billing/ids/me") is raw.exists("/consumers/billing/owners/orders/0") is None


def test_register_takes_nothing_over_from_another_instance_of_its_process(registry: Registry, raw: Any) -> None:
    group = registry.group("billing")
    first, second = group.instance("me"), MemberInstance(group.paths, registry._context, "me")
    first.register(["orders"])
    claim = first.claim(P0)
    for take in (lambda: second.register(["orders"]), second.resume):
        with pytest.raises(AlreadyRegisteredError):
            take()
    assert second.claims == {}
    assert claim.held
    first.deregister()
    second.register(["orders"])
    assert second.claim(P0).held


def test_leaving_the_with_block_ends_the_session_at_once_and_empties_the_file(
    zookeeper_hosts: str, file: Path, raw: Any
) -> None:
    with Registry.connect(zookeeper_hosts, session_file=file) as registry:
        claimed(registry)
        assert kept_session(file) == registry.session_id
    assert raw.exists("/consumers/billing/ids/me") is None
    assert file.read_bytes() == b""
    with Registry.connect(zookeeper_hosts, session_file=file) as registry:
        assert not registry.resumed


def test_a_session_without_a_file_can_be_left_and_expires_after_its_timeout(connect: Connect, raw: Any) -> None:
    registry = connect(session_timeout=2.0)
    claimed(registry)
    registry.close(leave=False)
    left = time.monotonic()
    assert raw.exists("/consumers/billing/ids/me")
    assert eventually(lambda: raw.exists("/consumers/billing/ids/me") is None)
    assert time.monotonic() - left > 1.0


def test_closing_again_ends_nothing(connect: Connect, file: Path, raw: Any) -> None:
    registry = connect(session_file=file)
    session = claimed(registry)
    registry.close(leave=False)
    registry.close()
    assert holder(raw) == session
    assert connect(session_file=file).resumed


def test_leaving_a_session_takes_no_time_and_leaves_no_thread(connect: Connect, file: Path) -> None:
    before = set(threading.enumerate())
    registry = connect(session_file=file)
    start = time.monotonic()
    registry.close(leave=False)
    assert time.monotonic() - start < 5
    assert set(threading.enumerate()) <= before
    with pytest.raises(NotConnectedError, match="closed"):
        registry.groups()


def test_after_an_expiry_the_file_contains_the_new_session(connect: Connect, file: Path) -> None:
    registry = connect(session_file=file)
    old = registry.session_id
    expire(registry)
    assert registry.session_id != old
    assert eventually(lambda: kept_session(file) == registry.session_id)
    session = registry.session_id
    registry.close(leave=False)
    assert connect(session_file=file).session_id == session


def test_an_expired_session_is_replaced_by_a_new_one(connect: Connect, file: Path, raw: Any) -> None:
    first = connect(session_file=file, session_timeout=2.0)
    session = claimed(first)
    first.close(leave=False)
    assert eventually(lambda: raw.exists("/consumers/billing/ids/me") is None)
    second = connect(session_file=file)
    assert not second.resumed
    assert second.session_id not in (None, session)
    assert kept_session(file) == second.session_id


def test_the_timeout_is_that_of_the_client_that_resumes_the_session(connect: Connect, file: Path) -> None:
    first = connect(session_file=file, session_timeout=20.0)
    asked = first.session_timeout
    first.close(leave=False)
    second = connect(session_file=file, session_timeout=10.0)
    assert (second.resumed, asked, second.session_timeout) == (True, 20.0, 10.0)


def test_a_longer_timeout_than_at_the_creation_of_the_session_does_not_count(
    connect: Connect, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = connect(session_file=file, session_timeout=10.0)
    first.close(leave=False)
    for _ in range(2):  # the record contains the smaller one
        second = connect(session_file=file, session_timeout=20.0)
        assert (second.resumed, second.session_timeout, kept(file)["timeout"]) == (True, 10.0, 10.0)
        second.close(leave=False)
    assert "was created with a timeout of 10 s" in caplog.text


def test_a_record_of_an_older_release_starts_a_new_session(
    connect: Connect, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = connect(session_file=file)
    first.close(leave=False)
    record = kept(file)
    del record["timeout"]
    file.write_text(json.dumps(record))
    second = connect(session_file=file)
    assert (second.resumed, second.session_id != first.session_id) == (False, True)
    assert "from an older release" in caplog.text


# Lost connections


@pytest.fixture
def behind(proxy: TcpProxy, zookeeper_hosts: str) -> str:
    return proxy.address + "/" + zookeeper_hosts.partition("/")[2]


def test_a_session_that_could_not_be_ended_stays_in_the_file(
    connect: Connect, proxy: TcpProxy, behind: str, file: Path
) -> None:
    registry = connect(behind, session_file=file)
    session = claimed(registry)
    proxy.drop()
    registry.close()
    assert kept_session(file) == session
    assert connect(session_file=file).session_id == session


@pytest.mark.parametrize("broken", ["drop", "refuse", "cut"])
def test_a_session_can_be_left_while_disconnected(
    connect: Connect, proxy: TcpProxy, behind: str, file: Path, broken: str
) -> None:
    registry = connect(behind, session_file=file)
    session = claimed(registry)
    getattr(proxy, broken)()
    if broken == "refuse":
        proxy.cut()
    start = time.monotonic()
    registry.close(leave=False)
    assert time.monotonic() - start < 8
    proxy.heal()
    with connect(session_file=file) as second:
        assert second.session_id == session
        assert second.group("billing").owner(P0) is not None


def test_a_failed_connection_attempt_keeps_the_session_for_the_next_one(
    connect: Connect, proxy: TcpProxy, behind: str, file: Path
) -> None:
    first = connect(session_file=file)
    session = claimed(first)
    first.close(leave=False)
    proxy.delay(1.5, direction="replies")
    with pytest.raises(NotConnectedError, match="no answer"):  # it is connected, but does not answer
        Registry.connect(behind, session_file=file, timeout=2.8)
    proxy.drop()
    with pytest.raises(NotConnectedError, match="could not connect"):
        Registry.connect(behind, session_file=file, timeout=0.5)
    second = connect(session_file=file)
    assert (second.resumed, second.session_id) == (True, session)


def test_a_short_outage_changes_nothing(connect: Connect, proxy: TcpProxy, behind: str, file: Path, raw: Any) -> None:
    registry = connect(behind, session_file=file)
    session = claimed(registry)
    before = file.read_bytes()
    proxy.cut()
    assert registry.groups() == ["billing"]
    assert (registry.session_id, holder(raw), file.read_bytes()) == (session, session, before)


# The file


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o777])
def test_only_the_owner_can_read_the_file_regardless_of_the_umask(connect: Connect, file: Path, mask: int) -> None:
    with umask(mask):
        registry = connect(session_file=str(file))
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
            b'{"zkgroups": 1, "pid": 1, "chroot": "CHROOT", "session": "0x' + b"f" * 40 + b":" + b"00" * 16 + b'"}'
        ),
        pytest.param(b'{"zkgroups": ' + b"[" * 4000, id="deep"),
    ],
)
def test_a_damaged_file_is_overwritten(connect: Connect, zookeeper_hosts: str, file: Path, damage: bytes) -> None:
    damage = damage.replace(b"CHROOT", b"/" + zookeeper_hosts.partition("/")[2].encode())
    file.write_bytes(damage.replace(b'"pid": 1', b'"pid": 1, "place": ""'))
    registry = connect(session_file=file)
    assert not registry.resumed
    assert kept_session(file) == registry.session_id
    registry.close(leave=False)
    assert connect(session_file=file).resumed


@pytest.mark.parametrize("content", [b"hosts: zk1:2181\n", b"{}", b'{"zkgroups": ' + b" " * 5000 + b"1}", b"\xff\xfe"])
def test_a_file_with_other_data_is_refused_and_not_changed(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(InvalidOptionError, match="contains other data") as caught:
        Registry.connect("127.0.0.1:1", session_file=file)
    assert caught.value.option == "session_file"
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


def test_a_connection_for_reading_only_keeps_no_session(file: Path) -> None:
    with pytest.raises(InvalidOptionError, match="reading only"):
        Registry.connect("127.0.0.1:1", session_file=file, read_only=True)
    assert not file.exists()


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


# Which session


def test_a_session_of_another_chroot_is_not_resumed(
    zookeeper: Any, connect: Connect, file: Path, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    first = connect(session_file=file)
    session = claimed(first)
    first.close(leave=False)
    second = connect(zookeeper.address, session_file=file)
    assert not second.resumed
    assert holder(raw) == session
    assert "is not resumed" in caplog.text
    assert kept_session(file) == second.session_id


def test_failure_27_a_copy_of_the_file_starts_a_new_session_while_the_first_process_is_alive(
    zookeeper_hosts: str, connect: Connect, file: Path, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A cloned volume, or a backup that was restored to another path, or to the same one."""
    with process(HOLDER + WAIT, zookeeper_hosts, file) as first:
        session = int(line(first))
        copy = file.with_name("copy")
        shutil.copy2(file, copy)
        second = connect(session_file=copy)
        assert not second.resumed
        assert second.session_id != session
        assert "is a copy" in caplog.text
        copy.unlink()
        shutil.copy2(file, copy)
        copy.rename(file)
        third = connect(session_file=file)
        assert (third.resumed, third.session_id != session) == (False, True)
        assert first.poll() is None
        assert holder(raw) == session


def test_failure_27_a_file_of_another_machine_or_an_earlier_boot_starts_a_new_session(
    connect: Connect, file: Path
) -> None:
    first = connect(session_file=file)
    session = claimed(first)
    first.close(leave=False)
    record = kept(file)
    boot, _, inode = record["place"].partition(" ")
    file.write_text(json.dumps(record | {"place": f"{boot[::-1]} {inode}"}))
    second = connect(session_file=file)
    assert (second.resumed, second.session_id != session) == (False, True)
    second.close(leave=False)
    assert connect(session_file=file).resumed


def test_another_ensemble_reports_the_session_as_expired(zookeeper: Any, connect: Connect, file: Path) -> None:
    first = connect(zookeeper.address, session_file=file)
    first.close(leave=False)
    with ZooKeeperServer() as other:
        second = connect(other.address, session_file=file)
        assert not second.resumed
        assert kept_session(file) == second.session_id


def test_an_instance_in_a_resumable_session_needs_an_id(connect: Connect, file: Path) -> None:
    group = connect(session_file=file).group("billing")
    with pytest.raises(InvalidOptionError, match="the same each time") as caught:
        group.instance()
    assert caught.value.option == "id"
    assert group.instance("me").id == "me"


# Logins


def go_on(hosts: str, file: Path, **options: Any) -> None:
    """Leave a session and resume it. Its nodes may be restricted to the logged-in user."""
    with Registry.connect(hosts, session_file=file, **options) as first:
        session = claimed(first)
        first.close(leave=False)
    with Registry.connect(hosts, session_file=file, **options) as second:
        assert (second.resumed, second.session_id) == (True, session)
        me = MemberInstance(second.group("billing").paths, second._context, "me")
        assert me.resume()
        assert P0 in me.find_owners([P0], ["me"])[0]
        me.deregister()


def test_a_session_is_resumed_with_a_digest_login(zookeeper_hosts: str, file: Path) -> None:
    only_alice = AclPolicy(ephemerals=[Acl.digest("alice", SECRET)])
    go_on(zookeeper_hosts, file, auth=[Digest("alice", SECRET)], acl=only_alice)


@pytest.mark.parametrize("enforce", [False, True])
def test_a_session_is_resumed_with_a_sasl_login(file: Path, enforce: bool) -> None:
    with ZooKeeperServer(sasl=server_side.Sasl({"alice": SECRET}, enforce=enforce)) as server:
        go_on(server.address, file, auth=[Sasl("alice", SECRET)])


def test_a_session_is_resumed_over_tls(tmp_path: Path, file: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    for name, host in (("server", "127.0.0.1"), ("client", "me@example.org")):
        made = authority.issue_cert(host)
        key = load_pem_private_key(made.private_key_pem.bytes(), None)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())  # a format that Java reads
        (tmp_path / f"{name}.pem").write_bytes(pem + b"".join(each.bytes() for each in made.cert_chain_pems))
    with ZooKeeperServer(tls=server_side.Tls(tmp_path / "server.pem", tmp_path / "ca.pem")) as server:
        go_on(server.secure_address, file, tls=Tls(tmp_path / "ca.pem", tmp_path / "client.pem"))


# Other processes

HOLDER = """
import os, signal, sys, warnings
warnings.simplefilter("ignore")
from zkgroups import Registry, TopicPartition
registry = Registry.connect(sys.argv[1], session_file=sys.argv[2], session_timeout=20.0)
me = registry.group("billing").instance("me")
me.register(["orders"])
claim = me.claim(TopicPartition("orders", 0))
print(registry.session_id, flush=True)
"""
WAIT = "sys.stdin.read()\n"


@contextmanager
def process(code: str, hosts: str, file: Path) -> Iterator[subprocess.Popen[str]]:
    """A process with a claim, which is killed after the test."""
    with subprocess.Popen(
        [sys.executable, "-c", code, hosts, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as started:
        try:
            yield started
        finally:
            started.kill()


def line(started: subprocess.Popen[str]) -> str:
    assert started.stdout is not None
    return started.stdout.readline().strip()


def test_the_next_process_holds_the_claims_of_a_killed_process(
    zookeeper_hosts: str, connect: Connect, file: Path, raw: Any
) -> None:
    with process(HOLDER + WAIT, zookeeper_hosts, file) as first:
        session = int(line(first))
        first.send_signal(signal.SIGKILL)
    registry = connect(session_file=file)
    assert (registry.resumed, registry.session_id, holder(raw)) == (True, session, session)


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_a_second_process_with_the_same_file_is_refused_at_once_and_the_first_is_named(
    zookeeper_hosts: str, file: Path, raw: Any, stopped: bool
) -> None:
    with process(HOLDER + WAIT, zookeeper_hosts, file) as first:
        session = int(line(first))
        if stopped:
            first.send_signal(signal.SIGSTOP)
        start = time.monotonic()
        with pytest.raises(SessionInUseError, match=f"{file} is in use by process {first.pid}$") as caught:
            Registry.connect(zookeeper_hosts, session_file=file)
        assert time.monotonic() - start < 5
        assert (caught.value.pid, caught.value.path) == (first.pid, str(file))
        assert isinstance(caught.value, ConflictError)
        assert holder(raw) == session


def test_a_second_registry_of_the_same_process_is_refused_too(connect: Connect, file: Path) -> None:
    first = connect(session_file=file)
    with pytest.raises(SessionInUseError, match=f"process {os.getpid()}"):
        connect(session_file=file)
    assert first.groups() == []
    first.close()
    connect(session_file=file)


FORKING = (
    HOLDER
    + """
import time
started = time.monotonic()
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
print("the fork ended with", os.waitpid(pid, 0)[1], time.monotonic() - started < 5, flush=True)
claim.commit(7)
print("committed in", registry.session_id, flush=True)
sys.stdin.read()
"""
)


@pytest.mark.parametrize("child", ["registry.close()", "registry.close(leave=False)", "registry.client.stop()", "pass"])
def test_a_fork_cannot_end_the_session(zookeeper_hosts: str, file: Path, raw: Any, child: str) -> None:
    code = FORKING.replace("{child}", child)
    with process(code, zookeeper_hosts, file) as parent:
        session = line(parent)
        said = [line(parent)]
        while said[-1] and not said[-1].startswith("the fork"):
            said.append(line(parent))
        assert said[-1] == "the fork ended with 0 True"
        assert said[0] == "NotConnectedError the connection is closed"
        assert line(parent) == f"committed in {session}"
        assert str(holder(raw)) == session
        with pytest.raises(SessionInUseError):
            Registry.connect(zookeeper_hosts, session_file=file)


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


def test_the_lock_ends_with_its_process_even_if_a_fork_is_alive(
    zookeeper_hosts: str, connect: Connect, file: Path
) -> None:
    with process(SURVIVED, zookeeper_hosts, file) as parent:
        session = int(line(parent))
        fork = int(line(parent).split()[1])
        parent.send_signal(signal.SIGKILL)
        parent.wait(30)
        assert connect(session_file=file).session_id == session
        os.kill(fork, 0)  # the fork is still alive


def test_a_child_program_does_not_inherit_the_file(connect: Connect, file: Path) -> None:
    registry = connect(session_file=file)
    code = "import pathlib; print([fd.resolve() for fd in pathlib.Path('/proc/self/fd').iterdir()])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, close_fds=False)
    assert str(file) not in found.stdout
    registry.close(leave=False)


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


def test_without_a_server_the_file_is_unlocked_again(connect: Connect, file: Path) -> None:
    with pytest.raises(NotConnectedError):
        Registry.connect("127.0.0.1:1", session_file=file, timeout=0.2)
    assert kept(file)["session"] is None
    assert not connect(session_file=file).resumed


@pytest.mark.parametrize("session_id", [2**63, -(2**63) - 1, 2**70])
def test_impossible_credentials_are_refused(session_id: int) -> None:
    with pytest.raises(InvalidOptionError, match="it must be a result of"):
        SessionCredentials.load(f"{session_id:#x}:{bytes(16).hex()}")
