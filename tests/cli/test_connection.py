"""From options to a connection: unreachable servers, passwords, TLS, and interruptions."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from kazoo.client import KazooClient
from kazoo.security import make_acl

from zkgroups import Registry
from zkgroups.testing import Op, ZooKeeperServer, local_server
from zkgroups.testing.zookeeper_server import Sasl, Tls

from ..releases import REQUIRED_LOGINS, has, needs_tls
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


@pytest.mark.parametrize("way", ["option", "environment", "context"])
def test_with_a_timeout_option_an_unreachable_host_is_waited_for(way: str, tmp_path: Path) -> None:
    env, options = {"ZKGROUPS_CONFIG": str(tmp_path / "contexts")}, list[str]()
    if way == "option":
        options = ["--timeout", "0.7"]
    elif way == "environment":
        env["ZKGROUPS_TIMEOUT"] = "0.7"
    else:
        assert run("context", "add", "it", "--timeout", "0.7", env=env).code == 0
        options = ["-c", "it"]
    ended = run("groups", "list", "-z", "127.0.0.1:1", *options, env=env)
    assert ended.code == 7
    assert ended.err.startswith("zkgroups: could not connect to 127.0.0.1:1 within 0.7 s: ")
    assert len(ended.err.splitlines()) == 1


@pytest.mark.zookeeper
def test_a_server_that_starts_within_the_timeout_is_found() -> None:
    port = local_server.reserve()
    arguments = ("groups", "create", "billing", "-z", f"127.0.0.1:{port.number}", "--timeout", "60")
    with started(*arguments) as process, ZooKeeperServer(port=port.number):
        _, err = process.communicate(timeout=TIMEOUT)
    port.release()
    assert (process.returncode, err) == (0, "created billing\n")


@pytest.mark.parametrize("lie", ["a web server", "2 GB", "a negative length", "zero bytes"])
@pytest.mark.parametrize("op", [CONNECT, Op.EXISTS])
def test_a_server_other_than_zookeeper_is_one_sentence_and_exit_code_7(op: int, lie: str) -> None:
    with Liar({op: DAMAGES[lie]}) as server:
        ended = run("groups", "list", "-z", server.address)
    assert (ended.code, ended.out) == (7, "")
    assert ended.err.startswith(
        f"zkgroups: could not connect to {server.address}: not a ZooKeeper server, or a damaged "
    )
    assert len(ended.err.splitlines()) == 1


def test_the_log_of_libraries_is_shown_on_request() -> None:
    verbose = run("groups", "list", "-z", "127.0.0.1:1", "--timeout", "3", "-v")
    assert "kazoo.client: Connection dropped" in verbose.err
    assert "Traceback" not in verbose.err
    assert "Traceback" in run("groups", "list", "-z", "127.0.0.1:1", "--timeout", "3", "-vv").err


@pytest.fixture
def kafka_root(zookeeper_hosts: str, kazoo: KazooClient) -> str:
    """A chroot with a group, beside chroots without groups."""
    kazoo.ensure_path("/kafka/consumers/billing/ids")
    kazoo.ensure_path("/storm/supervisors")
    kazoo.ensure_path("/fresh/brokers/ids")
    return zookeeper_hosts


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
    assert (empty.code, forgotten.code, mistyped.code) == (3, 3, 3)
    zookeeper, nothing = f"the ZooKeeper at {address}", "contains neither /consumers nor /brokers"
    create = "; check the chroot, or create the first group with `zkgroups groups create GROUP`\n"
    assert empty.err == f"zkgroups: the root (no chroot given) of {zookeeper} {nothing}{create}"
    assert forgotten.err == f"zkgroups: the root (no chroot given) of {zookeeper} {nothing}{found}"
    assert mistyped.err == f"zkgroups: /kafak does not exist in {zookeeper}{found}"
    assert needless.err == f"zkgroups: /kafak does not exist in {zookeeper}; groups are under /, /kafka\n"


@pytest.mark.zookeeper
def test_the_first_group_can_be_created_in_an_empty_chroot(zkgroups: Zkgroups, kafka_root: str) -> None:
    assert zkgroups("groups", "create", "first", "-z", f"{kafka_root}/storm").code == 0
    assert zkgroups("groups", "list", "-z", f"{kafka_root}/storm").out.split() == ["GROUP", "first"]


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
def test_a_password_comes_from_a_file(zkgroups: Zkgroups, secret: str, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("sesame\n")
    assert zkgroups(*AS_ALICE, "--password-file", tmp_path / "password").out.startswith(SEEN)


@pytest.mark.zookeeper
def test_a_password_comes_from_the_environment_and_is_never_logged(zkgroups: Zkgroups, secret: str) -> None:
    ended = zkgroups(*AS_ALICE, "-vv", ZKGROUPS_PASSWORD="sesame")
    assert ended.out.startswith(SEEN)
    assert "sesame" not in ended.err


@pytest.mark.parametrize(
    "option", ["--digest-user=alice --password-file", "--tls --tls-key-password-file"], ids=["user", "key"]
)
def test_a_secret_file_that_is_not_utf_8_is_exit_code_2_and_none_of_it_is_shown(tmp_path: Path, option: str) -> None:
    (tmp_path / "secret").write_bytes(b"ses\xe9ame")
    *before, option = option.split()
    ended = run("groups", "list", "-z", "127.0.0.1:1", "-vv", *before, option, tmp_path / "secret")
    assert ended.code == 2
    assert f"{option} is '{tmp_path / 'secret'}', but it is not UTF-8 text" in ended.err
    assert not any(part in ended.err.lower() for part in ("e9", "sesame", "codec"))


def test_a_password_in_the_environment_that_is_not_utf_8_is_exit_code_2_and_none_of_it_is_shown() -> None:
    ended = run(*AS_ALICE, "-z", "127.0.0.1:1", "-vv", env={"ZKGROUPS_PASSWORD": os.fsdecode(b"ses\xe9ame")})
    assert ended.code == 2
    assert "ZKGROUPS_PASSWORD: it is not UTF-8 text" in ended.err
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
def test_a_client_with_a_wrong_digest_password_has_the_rights_of_anyone(zkgroups: Zkgroups, secret: str) -> None:
    assert zkgroups(*AS_ALICE, ZKGROUPS_PASSWORD="wrong").code == 6


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


def _write_key(file: Path, certificate: trustme.LeafCert, encryption: KeySerializationEncryption) -> None:
    key = load_pem_private_key(certificate.private_key_pem.bytes(), None)
    file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))


@pytest.mark.zookeeper
@needs_tls
def test_tls_with_a_client_certificate_and_an_encrypted_key(tmp_path: Path) -> None:
    authority = trustme.CA()
    ours, theirs = authority.issue_cert("me@example.org"), authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    _write_key(tmp_path / "server.pem", theirs, NoEncryption())
    theirs.cert_chain_pems[0].write_to_path(tmp_path / "server.pem", append=True)
    _write_key(tmp_path / "key.pem", ours, BestAvailableEncryption(b"sesame"))
    ours.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    (tmp_path / "password").write_text("sesame\n")
    with ZooKeeperServer(tls=Tls(tmp_path / "server.pem", tmp_path / "ca.pem")) as server:
        authority_file = tmp_path / "ca.pem"
        trusting = ("groups", "create", "billing", "-z", server.secure_address, "--tls", "--tls-ca", authority_file)
        certified = (*trusting, "--tls-cert", tmp_path / "cert.pem", "--tls-key", tmp_path / "key.pem")
        assert run(*certified, "--tls-key-password-file", tmp_path / "password").code == 0
        assert run(*trusting, "--timeout", "1").code == 7


@pytest.mark.zookeeper
def test_the_error_for_a_wrong_chroot_names_others_although_the_root_cannot_be_listed() -> None:
    with ZooKeeperServer() as server:
        with Registry.connect(server.address) as registry:
            registry.client.ensure_path("/company/kafka/consumers")
            registry.client.set_acls("/", [make_acl("world", "anyone", create=True)])
        above = run("groups", "list", "-z", f"{server.address}/company")
    assert (above.code, above.err.endswith("; groups are under /company/kafka\n")) == (3, True)
