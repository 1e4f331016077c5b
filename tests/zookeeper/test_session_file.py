"""Session files: permissions, damage, and locks."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.testing.waiting import eventually
from zkgroups import Registry, SessionCredentials
from zkgroups.exceptions import (
    InvalidOptionError,
    NotConnectedError,
    SessionInUseError,
)

from .conftest import Connect
from .events import expire
from .session_files import kept, kept_session

pytestmark = pytest.mark.zookeeper


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


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


def test_a_second_registry_of_the_same_process_is_refused_too(connect: Connect, file: Path) -> None:
    first = connect(session_file=file)
    with pytest.raises(SessionInUseError, match=f"process {os.getpid()}"):
        connect(session_file=file)
    assert first.groups() == []
    first.close()
    connect(session_file=file)


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
