"""`zkgroups zookeeper`: a real server in the foreground, which ends with the command."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from zkgroups import Registry
from zkgroups.testing import ports

from .running import TIMEOUT, Terminal, run, started

pytestmark = pytest.mark.zookeeper


def address_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def serves(address: str) -> bool:
    host, port = address.split(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def server_process(data_dir: Path) -> int:
    """Return the server process with this data folder, found by its configuration file."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().split(b"\0")
        except OSError:  # it has ended meanwhile
            continue
        if words[0].endswith(b"java") and bytes(data_dir / "zoo.cfg") in words:
            return int(file.parent.name)
    raise LookupError(data_dir)


def test_the_address_is_the_one_line_on_stdout_and_sigterm_ends_both() -> None:
    with started("zookeeper") as process:
        address = address_of(process)
        assert run("groups", "create", "billing", "-z", address).code == 0
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, out) == (143, "")
    assert err.splitlines()[0].startswith("ZooKeeper is running")
    assert not serves(address)


def test_ctrl_c_ends_both() -> None:
    with Terminal("zookeeper") as terminal:
        terminal.wait_for("Ctrl-C stops it")
        address = terminal.seen.splitlines()[0]
        assert serves(address)
        terminal.type("\x03")
        ended = terminal.end()
    assert ended.code == 130
    assert not serves(address)


def test_the_requested_port_is_used_and_printed_in_json(tmp_path: Path) -> None:
    port = ports.reserve()
    try:
        with started("zookeeper", "--port", str(port.number), "-o", "jsonl", "--data-dir", tmp_path) as process:
            assert address_of(process) == (
                f'{{"schema": 1, "address": "127.0.0.1:{port.number}", "data_dir": "{tmp_path}"}}'
            )
    finally:
        port.release()


def test_data_in_a_given_directory_is_kept(tmp_path: Path) -> None:
    for round in range(2):
        with (
            started("zookeeper", "--data-dir", tmp_path / "data") as process,
            Registry.connect(address_of(process)) as registry,
        ):
            assert ("billing" in registry) is bool(round)
            registry.group("billing").create()
            process.send_signal(signal.SIGTERM)
            process.wait(TIMEOUT)


def test_a_server_that_ends_by_itself_ends_the_command(tmp_path: Path) -> None:
    with started("zookeeper", "--data-dir", tmp_path) as process:
        address_of(process)
        os.kill(server_process(tmp_path), signal.SIGKILL)
        _, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 1
    assert "zkgroups: the server stopped unexpectedly" in err


def test_a_port_in_use_is_an_error_of_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = run("zookeeper", "--port", str(taken.getsockname()[1]))
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.endswith("is taken by another program\n")


@pytest.mark.parametrize("port", ["0", "65536", "http"])
def test_an_invalid_port_is_exit_code_2(port: str) -> None:
    assert run("zookeeper", "--port", port).code == 2


def test_without_java_the_error_names_the_package_to_install(tmp_path: Path) -> None:
    ended = run("zookeeper", env={"PATH": str(tmp_path), "JAVA_HOME": ""})
    assert (ended.code, ended.out) == (1, "")
    assert "install" in ended.err
    assert len(ended.err.splitlines()) == 1
