"""From options to a connection: unreachable servers, passwords, TLS, and interruptions."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl
from zkgroups_cli.shared.connect import for_workers
from zkgroups_cli.shared.options import Options

from zkgroups import Registry
from zkgroups.testing import ZooKeeperServer, local_server
from zkgroups.testing.zookeeper_server import Sasl

from ..releases import REQUIRED_LOGINS, has
from ..zookeeper.liar import CONNECT, DAMAGES, Liar
from .conftest import Zkgroups
from .running import TIMEOUT, Terminal, run, started


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        yield server


def address(server: socket.socket) -> str:
    return "{}:{}".format(*server.getsockname())


# Unreachable servers


UNREACHABLE = {
    "127.0.0.1:1": "Connection refused",
    "no-such-host.invalid:2181": "unknown host",
    "127.0.0.1:1,no-such-host.invalid:2181": "127.0.0.1:1: Connection refused; no-such-host.invalid:2181: unknown host",
}
HINT = "; use --timeout DURATION to wait for a server that is starting\n"


@pytest.mark.parametrize("hosts", UNREACHABLE)
def test_unreachable_hosts_are_an_error_at_once_without_a_timeout_option(hosts: str) -> None:
    """An error without "within 10 s" did not take them."""
    ended = run("groups", "list", "-z", hosts)
    assert (ended.code, ended.out) == (7, "")
    assert ended.err.startswith(f"zkgroups: could not connect to {hosts}: {UNREACHABLE[hosts]}")
    assert ended.err.endswith(HINT)
    waited = run("groups", "list", "-z", hosts, "--timeout", "0.7").err
    assert waited.startswith(f"zkgroups: could not connect to {hosts} within 0.7 s: ")
    assert len(waited.splitlines()) == 1


def test_a_server_other_than_zookeeper_is_one_sentence_and_exit_code_7() -> None:
    with Liar({CONNECT: DAMAGES["a web server"]}) as server:
        ended = run("groups", "list", "-z", server.address)
    said = f"zkgroups: could not connect to {server.address}: not a ZooKeeper server, or a damaged "
    assert (ended.code, ended.out, ended.err.startswith(said), len(ended.err.splitlines())) == (7, "", True, 1)


@pytest.mark.zookeeper
def test_a_server_that_starts_within_the_timeout_is_found() -> None:
    port = local_server.reserve()
    arguments = ("groups", "create", "billing", "-z", f"127.0.0.1:{port.number}", "--timeout", "60")
    with started(*arguments) as process, ZooKeeperServer(port=port.number):
        _, err = process.communicate(timeout=TIMEOUT)
    port.release()
    assert (process.returncode, err) == (0, "created billing\n")


def test_the_log_of_libraries_is_shown_on_request() -> None:
    verbose = run("groups", "list", "-z", "127.0.0.1:1", "--timeout", "3", "-v")
    assert "kazoo.client: Connection dropped" in verbose.err
    assert "Traceback" not in verbose.err
    assert "Traceback" in run("groups", "list", "-z", "127.0.0.1:1", "--timeout", "3", "-vv").err


@pytest.mark.zookeeper
def test_the_error_for_an_empty_zookeeper_or_a_mistyped_or_missing_chroot_says_what_to_do() -> None:
    with ZooKeeperServer() as server:
        empty = run("groups", "list", "-z", server.address)
        with Registry.connect(server.address) as registry:
            registry.client.ensure_path("/kafka/consumers/billing/ids")
        address, found = server.address, "; groups are under /kafka\n"
        forgotten = run("groups", "list", "-z", server.address)
        mistyped = run("groups", "list", "-z", f"{server.address}/kafak")
        with Registry.connect(server.address) as registry:
            registry.client.ensure_path("/consumers/billing/ids")
            needless = run("groups", "list", "-z", f"{server.address}/kafak")
            registry.client.ensure_path("/company/kafka/consumers")
            registry.client.set_acls("/", [make_acl("world", "anyone", create=True)])
        hidden = run("groups", "list", "-z", f"{server.address}/company")
    assert (empty.code, forgotten.code, mistyped.code) == (3, 3, 3)
    zookeeper, nothing = f"the ZooKeeper at {address}", "contains neither /consumers nor /brokers"
    create = "; check the chroot, or create the first group with `zkgroups groups create GROUP`\n"
    assert empty.err == f"zkgroups: the root (no chroot given) of {zookeeper} {nothing}{create}"
    assert forgotten.err == f"zkgroups: the root (no chroot given) of {zookeeper} {nothing}{found}"
    assert mistyped.err == f"zkgroups: /kafak does not exist in {zookeeper}{found}"
    assert needless.err == f"zkgroups: /kafak does not exist in {zookeeper}; groups are under /, /kafka\n"
    assert (hidden.code, hidden.err.endswith("/company/kafka\n")) == (3, True), hidden.err


@pytest.mark.zookeeper
def test_the_first_group_can_be_created_in_an_empty_chroot(
    zkgroups: Zkgroups, zookeeper_hosts: str, kazoo: KazooClient
) -> None:
    kazoo.ensure_path("/storm/supervisors")
    assert zkgroups("groups", "create", "first", "-z", f"{zookeeper_hosts}/storm").code == 0
    assert zkgroups("groups", "list", "-z", f"{zookeeper_hosts}/storm").out.split() == ["GROUP", "first"]


# Interruptions


def test_ctrl_c_ends_a_command_that_waits(silent: socket.socket) -> None:
    with Terminal("groups", "list", "-z", address(silent), "--timeout", "60") as terminal, silent.accept()[0]:
        terminal.type("\x03")
        ended = terminal.end()
    assert ended.code == 130
    assert ended.out.endswith("zkgroups: interrupted\n")


def test_sigterm_ends_a_command_that_waits(silent: socket.socket) -> None:
    with started("groups", "list", "-z", address(silent), "--timeout", "60") as process, silent.accept()[0]:
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, out, err) == (143, "", "zkgroups: terminated\n")


# Passwords

AS_ALICE = ("groups", "list", "-o", "csv", "--no-headers", "--digest-user", "alice")
SEEN = "secret,Empty,0,1,1,0,1,"


@pytest.mark.zookeeper
def test_a_password_comes_from_a_file_or_the_environment_and_is_never_logged(
    zkgroups: Zkgroups, secret: str, tmp_path: Path
) -> None:
    (tmp_path / "password").write_text("sesame\n")
    assert zkgroups(*AS_ALICE, "--password-file", tmp_path / "password").out.startswith(SEEN)
    ended = zkgroups(*AS_ALICE, "-vv", ZKGROUPS_PASSWORD="sesame")
    assert ended.out.startswith(SEEN)
    assert "sesame" not in ended.err


@pytest.mark.parametrize("option", ["--password-file", "--tls-key-password-file", ""])
def test_a_secret_that_is_not_utf_8_is_exit_code_2_and_none_of_it_is_shown(tmp_path: Path, option: str) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"ses\xe9ame")
    more = (
        ("--tls", option, file) if "tls" in option else ("--digest-user", "alice", *((option, file) if option else ()))
    )
    env = {} if option else {"ZKGROUPS_PASSWORD": os.fsdecode(b"ses\xe9ame")}
    ended = run("groups", "list", "-z", "127.0.0.1:1", "-vv", *more, *((option, file) if option else ()), env=env)
    said = f"{option} is '{file}', but it is not UTF-8 text" if option else "ZKGROUPS_PASSWORD: it is not UTF-8 text"
    assert (ended.code, said in ended.err) == (2, True)
    assert not any(part in ended.err.lower() for part in ("e9", "sesame", "codec"))


@pytest.mark.zookeeper
def test_a_password_is_requested_on_a_terminal_and_not_shown(zookeeper_hosts: str, secret: str) -> None:
    with Terminal(*AS_ALICE, "-z", zookeeper_hosts) as terminal:
        terminal.wait_for("Password of alice: ")
        terminal.type("sesame\n")
        ended = terminal.end()
    assert ended.code == 0
    assert SEEN in ended.out
    assert "sesame" not in ended.out


@pytest.mark.zookeeper
def test_a_sasl_login_needs_the_right_password_and_a_wrong_one_is_one_sentence() -> None:
    with ZooKeeperServer(sasl=Sasl({"alice": "sesame"}, enforce=has(REQUIRED_LOGINS))) as server:
        arguments = ("groups", "create", "billing", "-z", server.address, "--sasl-user", "alice")
        assert run(*arguments, env={"ZKGROUPS_PASSWORD": "sesame"}).code == 0
        wrong = run(*arguments, env={"ZKGROUPS_PASSWORD": "wrong"})
        assert (wrong.code, wrong.out) == (6, "")
        rejected = "rejected the credentials, or requires some: check the user and the password"
        assert wrong.err == f"zkgroups: {server.address} {rejected}\n"
        assert run("groups", "list", "-z", server.address).code == (6 if has(REQUIRED_LOGINS) else 0)


def test_each_option_of_the_connection_reaches_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/zookeeper/test_logins.py shows what they do."""
    monkeypatch.chdir("/")
    files = {name: Path(name) for name in ("password_file", "tls_ca", "tls_cert", "tls_key", "tls_key_password_file")}
    numbers = {"zookeeper": "zk1:2181", "timeout": 7.0, "session_timeout": 40.0, "read_only": True}
    users = {"digest_user": "alice", "tls": True}
    options = Options(**numbers, **users, **files, no_tls_hostname_check=True)  # type: ignore[arg-type]
    absolute = {name: f"/{name}" for name in files}
    expected = numbers | users | absolute | {"tls_hostname_check": False}
    assert {name: value for name, value in for_workers(options).items() if name in expected} == expected
