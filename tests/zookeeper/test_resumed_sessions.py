"""Sessions that are resumed from their file, and sessions that are not."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from tests.testing.waiting import eventually
from zkgroups import Acl, AclPolicy, Digest, Registration, Registry, Sasl, Tls, TopicPartition
from zkgroups.exceptions import (
    AlreadyClaimedError,
    AlreadyRegisteredError,
    InvalidOptionError,
    NotConnectedError,
    OutcomeUnknownError,
)
from zkgroups.testing import TcpProxy, ZooKeeperServer, zookeeper_configuration
from zkgroups.zookeeper.member_instance import MemberInstance
from zkgroups.zookeeper.session import connection

from ..releases import needs_required_logins, needs_tls
from .conftest import GIVES_UP, LONG_SESSION, Connect
from .events import expire
from .session_files import claimed, holder, kept, kept_session
from .unknown import unknown
from .waiting import AT_ONCE, in_time

pytestmark = pytest.mark.zookeeper


P0 = TopicPartition("orders", 0)
SECRET = "s3cret"


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


def test_register_takes_over_the_claims_of_its_session_after_an_unknown_outcome(
    behind: str, proxy: TcpProxy, connect: Connect, file: Path
) -> None:
    """The earlier process has written the same bytes, so its registration looks like the result of the lost request."""
    subscription = Registration({"orders": 1})
    first = connect(session_file=file)
    me = first.group("billing").instance("me")
    me.register(subscription)
    me.claim(P0)
    first.close(leave=False)
    second = connect(behind, session_file=file, session_timeout=LONG_SESSION, timeout=GIVES_UP)
    me = second.group("billing").instance("me")
    proxy.cut_before_reply(1)
    proxy.refuse()
    with pytest.raises(OutcomeUnknownError):
        me.register(subscription)
    proxy.heal()
    assert eventually(lambda: second.client.connected)
    me.register(subscription)
    assert list(me.claims) == [P0]
    assert me.claim(P0).verify()


def test_a_resumed_claim_whose_release_has_an_unknown_outcome_is_claimed_again(
    behind: str, proxy: TcpProxy, connect: Connect, file: Path
) -> None:
    first = connect(session_file=file)
    claimed(first)
    first.close(leave=False)
    second = connect(behind, session_file=file, session_timeout=LONG_SESSION, timeout=GIVES_UP)
    me = second.group("billing").instance("me")
    me.register(["orders"])
    unknown(me.claims[P0].release, second, proxy)
    assert me.claim(P0).held


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
    registry = connect(session_timeout=6.0)
    claimed(registry)
    left = time.monotonic()
    registry.close(leave=False)
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
    with in_time(AT_ONCE):
        registry.close(leave=False)
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
    first = connect(session_file=file, session_timeout=6.0)
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


def test_a_session_whose_end_was_not_confirmed_is_ended_by_the_next_process_and_not_resumed(
    connect: Connect, proxy: TcpProxy, behind: str, file: Path, raw: Any
) -> None:
    """The request to end it may arrive later."""
    registry = connect(behind, session_file=file)
    session = claimed(registry)
    proxy.drop()
    registry.close()
    assert kept_session(file) is None
    assert holder(raw) == session
    second = connect(session_file=file)
    assert kept_session(file) == second.session_id != session
    assert raw.exists("/consumers/billing/owners/orders/0") is None
    claimed(second)


def test_a_session_that_cannot_be_ended_without_a_connection_stays_in_the_file(
    connect: Connect, proxy: TcpProxy, behind: str, file: Path
) -> None:
    registry = connect(behind, session_file=file)
    session = claimed(registry)
    proxy.refuse()
    proxy.cut()
    assert eventually(lambda: not registry.client.connected)
    registry.close()
    assert kept_session(file) == session
    assert connect(session_file=file).session_id == session


def test_a_process_that_cannot_end_the_session_of_the_last_one_starts_a_new_session(
    connect: Connect, proxy: TcpProxy, behind: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = connect(behind, session_file=file)
    session = claimed(registry)
    proxy.drop()
    registry.close()

    def cannot_connect(*_: object) -> bool:
        raise NotConnectedError("no answer")

    monkeypatch.setattr(connection, "end_session", cannot_connect)
    second = connect(session_file=file)
    assert kept_session(file) == second.session_id != session
    with pytest.raises(AlreadyRegisteredError):
        claimed(second)


@pytest.mark.parametrize("broken", ["drop", "refuse", "cut"])
def test_a_session_can_be_left_while_disconnected(
    connect: Connect, proxy: TcpProxy, behind: str, file: Path, broken: str
) -> None:
    registry = connect(behind, session_file=file)
    session = claimed(registry)
    getattr(proxy, broken)()
    if broken == "refuse":
        proxy.cut()
    with in_time(AT_ONCE):
        registry.close(leave=False)
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
    tried: list[str] = []
    while not tried or ("no answer" not in tried[-1] and len(tried) < 5):  # it is connected, but does not answer
        with pytest.raises(NotConnectedError) as caught:
            Registry.connect(behind, session_file=file, timeout=2.8)
        tried.append(str(caught.value))
    assert "no answer" in tried[-1], tried
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


@pytest.mark.parametrize("enforce", [False, pytest.param(True, marks=needs_required_logins)])
def test_a_session_is_resumed_with_a_sasl_login(file: Path, enforce: bool) -> None:
    with ZooKeeperServer(sasl=zookeeper_configuration.Sasl({"alice": SECRET}, enforce=enforce)) as server:
        go_on(server.address, file, auth=[Sasl("alice", SECRET)])


@needs_tls
def test_a_session_is_resumed_over_tls(tmp_path: Path, file: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    for name, host in (("server", "127.0.0.1"), ("client", "me@example.org")):
        made = authority.issue_cert(host)
        key = load_pem_private_key(made.private_key_pem.bytes(), None)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())  # a format that Java reads
        (tmp_path / f"{name}.pem").write_bytes(pem + b"".join(each.bytes() for each in made.cert_chain_pems))
    with ZooKeeperServer(tls=zookeeper_configuration.Tls(tmp_path / "server.pem", tmp_path / "ca.pem")) as server:
        go_on(server.secure_address, file, tls=Tls(tmp_path / "ca.pem", tmp_path / "client.pem"))
