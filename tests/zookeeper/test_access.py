"""Access control lists, digest, SASL and TLS. Failure 16 for a single registry."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

from zkgroups import (
    Acl,
    AclPolicy,
    CommittedOffset,
    Digest,
    ForbiddenNode,
    GroupState,
    Registry,
    Sasl,
    Tls,
    TopicPartition,
    Watched,
)
from zkgroups.exceptions import (
    AccessError,
    AuthenticationError,
    GroupInUseError,
    InvalidOptionError,
    NoPermissionError,
    NotConnectedError,
    UnavailableError,
    ZkgroupsException,
)
from zkgroups.testing import TcpProxy, ZooKeeperServer
from zkgroups.testing import server_configuration as server_side
from zkgroups.zookeeper.admin.transaction_guards import NobodyRegistered

from .conftest import Connect
from .test_group import until
from .test_registry import AT_ONCE, in_time, no_thread_stays
from .tree import dump

pytestmark = pytest.mark.zookeeper

P0, P1, P2 = (TopicPartition("orders", number) for number in range(3))
GROUP = "/consumers/billing"
IDS, OWNERS, OFFSETS = f"{GROUP}/ids", f"{GROUP}/owners", f"{GROUP}/offsets"
SECRET = "pass:word of alice"
ALICE = Acl.digest("alice", SECRET)
TIMEOUT = 1.0


@pytest.fixture
def alice(zookeeper_hosts: str) -> Iterator[Any]:
    """A plain client whose new nodes only alice may use."""
    client = KazooClient(zookeeper_hosts, auth_data=[("digest", f"alice:{SECRET}")])
    client.start()
    yield client
    client.stop()
    client.close()


def only_alice(all: bool = True, **rights: bool) -> list[Any]:
    return [make_digest_acl("alice", SECRET, all=all, **rights)]


def may_world(**rights: bool) -> list[Any]:
    """All rights for alice, and some rights for all clients."""
    from kazoo.security import make_acl

    return [*only_alice(), make_acl("world", "anyone", **rights)]


# The policy


def test_each_kind_of_node_carries_its_own_list_and_the_parents_the_list_of_directories(
    connect: Connect, alice: Any
) -> None:
    directories = (ALICE, Acl("world", "anyone", "rc"))
    ephemerals = (ALICE, Acl("world", "anyone", "rw"))
    offsets = (ALICE, Acl("world", "anyone", "r"))
    registry = connect(acl=AclPolicy(directories, ephemerals, offsets), auth=[Digest("alice", SECRET)])
    group = registry.group("billing")
    me = group.instance("me")
    me.register(["orders"])
    me.update(["orders", "refunds"])
    claims = me.claim_many([P0, P1])
    claims[P0].commit(5)
    group.offsets.set_many({P2: 1, TopicPartition("refunds", 0): 2})
    group.copy("billing-2")
    registry.group("made").create()
    NobodyRegistered(registry.group("made").paths, registry._context)
    registry.group("made").offsets.reset({P0: 3})
    registry.group("made").offsets.delete([P0])
    expected = {"directory": directories, "ephemeral": ephemerals, "offset": offsets}
    seen = set()
    for path, (_data, ephemeral, _version) in dump(alice).items():
        kind = (
            "ephemeral"
            if ephemeral
            else "offset"
            if path.split("/")[3:4] == ["offsets"] and path.count("/") == 5
            else "directory"
        )
        acls = alice.get_acls(path)[0]
        assert {(a.id.scheme, a.id.id, a.perms) for a in acls} == {
            (a.scheme, a.id, {"cdrwa": 31, "rc": 5, "rw": 3, "r": 1}[a.permissions]) for a in expected[kind]
        }, path
        seen.add(kind)
    assert seen == set(expected)
    assert alice.exists(f"{IDS}/me")
    assert alice.exists(f"{OWNERS}/orders/1")


def test_without_a_policy_nodes_are_open_to_all_clients(registry: Registry, raw: Any) -> None:
    registry.group("billing").offsets.set(P0, 1)
    assert {tuple(raw.get_acls(path)[0]) for path in dump(raw)} == {tuple(OPEN_ACL_UNSAFE)}


@pytest.mark.parametrize("permissions", ["", "x", "rwx", "RW"])
def test_permissions_are_letters_of_cdrwa(permissions: str) -> None:
    with pytest.raises(InvalidOptionError, match="permissions"):
        Acl("world", "anyone", permissions)


@pytest.mark.parametrize("acl", [Acl("digest", "no-colon"), Acl("no-such-scheme", "x"), Acl("ip", "not an address")])
def test_an_acl_that_the_server_rejects_is_named_and_nothing_is_created(connect: Connect, raw: Any, acl: Acl) -> None:
    registry = connect(acl=AclPolicy(directories=[acl]))
    with pytest.raises(InvalidOptionError, match="acl"):
        registry.group("billing").offsets.set(P0, 1)
    assert raw.get_children("/") == []


# No permission


def seed(alice: Any) -> None:
    """Three offsets. All clients may read all of them, but write only the first."""
    alice.create(f"{OFFSETS}/orders/0", b"1", makepath=True)
    alice.create(f"{OFFSETS}/orders/1", b"1", acl=may_world(read=True))
    alice.create(f"{OFFSETS}/orders/2", b"1", acl=may_world(read=True, write=True))


def test_failure_16_a_commit_of_many_offsets_with_a_forbidden_one_changes_nothing(
    registry: Registry, alice: Any
) -> None:
    seed(alice)
    before = dump(alice)
    with pytest.raises(NoPermissionError) as caught:
        registry.group("billing").offsets.set_many({P0: 5, P1: 5, P2: 5})
    assert caught.value.path == f"{OFFSETS}/orders/1"
    with pytest.raises(NoPermissionError):
        registry.group("billing").offsets.reset({P2: 0, P1: 0, P0: 0})
    assert dump(alice) == before


def test_failure_16_a_fenced_commit_of_many_offsets_with_a_forbidden_one_changes_nothing(
    registry: Registry, alice: Any
) -> None:
    seed(alice)
    me = registry.group("billing").instance("me")
    me.register(["orders"])
    claims = me.claim_many([P0, P1, P2])
    with pytest.raises(NoPermissionError) as caught:
        claims.commit({P0: 5, P1: 5, P2: 5})
    assert caught.value.path == f"{OFFSETS}/orders/1"
    assert [alice.get(f"{OFFSETS}/orders/{number}")[0] for number in range(3)] == [b"1"] * 3
    claims.commit({P0: 5, P2: 5})
    assert claims.held


def test_failure_16_a_copy_a_claim_and_a_registration_without_permission_are_all_or_nothing(
    registry: Registry, alice: Any
) -> None:
    group = registry.group("billing")
    seed(alice)
    alice.create(OWNERS)
    alice.create(f"{OWNERS}/orders")
    alice.create(f"{OWNERS}/refunds", acl=may_world(read=True))
    alice.create(IDS)
    me = group.instance("me")
    me.register(["orders"])
    before = dump(alice)
    with pytest.raises(NoPermissionError) as caught:
        me.claim_many([P0, P1, TopicPartition("refunds", 0)])
    assert caught.value.path == f"{OWNERS}/refunds/0"
    assert (me.claims, dump(alice)) == ({}, before)
    alice.set_acls(IDS, may_world(read=True))
    with pytest.raises(NoPermissionError) as caught:
        group.instance("you").register(["orders"])
    assert caught.value.path == f"{IDS}/you"
    alice.set_acls("/consumers", may_world(read=True))
    with pytest.raises(NoPermissionError) as caught:
        group.copy("copy")
    assert caught.value.path == "/consumers/copy"
    assert alice.get_children("/consumers") == ["billing"]


@pytest.mark.parametrize(
    ("denied", "call"),
    [
        ("/consumers", lambda r: r.groups()),
        ("/brokers/topics", lambda r: r.topics()),
        ("/brokers/topics/orders", lambda r: r.topic("orders")),
        ("/brokers/ids", lambda r: r.brokers()),
        (IDS, lambda r: r.group("billing").instances()),
        (f"{IDS}/you", lambda r: r.group("billing").instance("you").registration()),
        (f"{OWNERS}/orders/0", lambda r: r.group("billing").owner(P0)),
        (f"{OFFSETS}/orders/0", lambda r: r.group("billing").offsets.fetch(P0)),
        (f"{OFFSETS}/orders/0", lambda r: r.group("billing").offsets.set(P0, 9)),
        (f"{OFFSETS}/orders/0", lambda r: r.group("billing").offsets.set(P0, 9, expected=None)),
        (f"{OFFSETS}/orders/0", lambda r: r.group("billing").offsets.reset({P0: 0}, force=True)),
        (f"{OFFSETS}/orders/0", lambda r: r.group("billing").offsets.delete([P0], force=True)),
        (IDS, lambda r: r.group("billing").offsets.reset({P0: 0})),
        (IDS, lambda r: r.group("billing").delete()),
        (IDS, lambda r: r.group("billing").release(P0, expected_owner="you")),
        (f"{IDS}/you", lambda r: r.group("billing").release(P0, expected_owner="you")),
    ],
)
def test_a_forbidden_read_raises_an_error_with_the_path_and_changes_nothing(
    registry: Registry, alice: Any, denied: str, call: Callable[[Registry], object]
) -> None:
    alice.create("/brokers/topics/orders", b'{"partitions":{"0":[1]}}', makepath=True)
    alice.ensure_path("/brokers/ids")
    alice.create(f"{OFFSETS}/orders/0", b"7", makepath=True)
    alice.create(f"{OWNERS}/orders/0", b"you", ephemeral=True, makepath=True)
    alice.create(f"{IDS}/you", b"orders", ephemeral=True, makepath=True)
    before = dump(alice, "/")
    alice.set_acls(denied, only_alice())
    with pytest.raises(NoPermissionError) as caught:
        call(registry)
    assert caught.value.path == denied
    assert denied in str(caught.value)
    assert isinstance(caught.value, AccessError)
    assert dump(alice, "/") == before


@pytest.mark.parametrize(
    ("denied", "call"),
    [
        (GROUP, lambda r: r.group("billing").delete()),
        (OFFSETS, lambda r: r.group("billing").offsets.set(TopicPartition("new", 0), 1)),
        (f"{OFFSETS}/orders", lambda r: r.group("billing").offsets.delete([P0, P1])),
        (f"{OFFSETS}/orders", lambda r: r.group("billing").delete()),
        (OWNERS, lambda r: r.group("billing").delete()),
        ("/consumers", lambda r: r.group("other").create()),
    ],
)
def test_a_forbidden_write_or_delete_raises_an_error_with_the_path_and_changes_nothing(
    registry: Registry, alice: Any, denied: str, call: Callable[[Registry], object]
) -> None:
    alice.create(f"{OFFSETS}/orders/0", b"7", makepath=True)
    alice.create(f"{OFFSETS}/orders/1", b"8")
    alice.create(f"{OWNERS}/orders", makepath=True)
    alice.create(IDS)
    alice.set_acls(denied, may_world(read=True))
    before = dump(alice, "/")
    with pytest.raises(NoPermissionError) as caught:
        call(registry)
    assert caught.value.path.startswith(denied)
    assert dump(alice, "/") == before


def test_failure_16_forbidden_nodes_are_marked_and_all_others_are_read(registry: Registry, alice: Any) -> None:
    group = registry.group("billing")
    alice.create("/brokers/topics/orders", b'{"partitions":{"0":[],"1":[],"2":[]}}', makepath=True)
    alice.create("/brokers/topics/refunds", b'{"partitions":{"0":[]}}', acl=only_alice())
    alice.create(
        f"{IDS}/me", b'{"version":1,"subscription":{"orders":1},"pattern":"static"}', ephemeral=True, makepath=True
    )
    alice.create(f"{IDS}/other", b"x", ephemeral=True, acl=only_alice())
    for number in range(3):
        alice.create(f"{OFFSETS}/orders/{number}", b"%d" % number, makepath=True)
        alice.create(f"{OWNERS}/orders/{number}", b"me", ephemeral=True, makepath=True)
    alice.create(f"{OFFSETS}/refunds/0", b"5", makepath=True)
    alice.create(f"{OFFSETS}/secret/0", b"5", makepath=True)
    alice.set_acls(f"{OFFSETS}/secret", only_alice())
    alice.set_acls(f"{OFFSETS}/orders/1", only_alice())
    alice.set_acls(f"{OWNERS}/orders/2", only_alice())

    denied = {f"{OFFSETS}/orders/1", f"{OFFSETS}/secret"}
    found = list(group.offsets)
    assert {node.path for node in found if isinstance(node, ForbiddenNode)} == denied
    assert {offset.at for offset in found if isinstance(offset, CommittedOffset)} == {
        P0,
        P2,
        TopicPartition("refunds", 0),
    }
    assert [type(offset) for offset in group.offsets.fetch_many([P0, P1]).values()] == [CommittedOffset, ForbiddenNode]
    assert [str(type(owner).__name__) for owner in group.owners()] == ["Owner", "Owner", "ForbiddenNode"]
    assert [instance.id for instance in group.instances()] == ["me", "other"]

    description = group.describe()
    assert {node.path for node in description.unreadable} == denied | {
        "/brokers/topics/refunds",
        f"{IDS}/other",
        f"{OWNERS}/orders/2",
    }
    assert all("permission" in node.reason for node in description.unreadable)
    assert (description.state, description.members, description.offsets) == (GroupState.UNKNOWN, 2, 3)
    assert description.unowned == (P2,)


def test_failure_16_a_forbidden_directory_is_marked_and_the_rest_of_the_group_is_described(
    registry: Registry, alice: Any
) -> None:
    alice.ensure_path("/brokers/topics")
    alice.create(
        f"{IDS}/me", b'{"version":1,"subscription":{".*":1},"pattern":"white_list"}', ephemeral=True, makepath=True
    )
    alice.create(f"{OFFSETS}/orders/0", b"5", makepath=True)
    alice.create(f"{OWNERS}/orders/0", b"me", ephemeral=True, makepath=True)
    for denied in ("/brokers/topics", IDS, OWNERS, OFFSETS):
        alice.set_acls(denied, only_alice())
        description = registry.group("billing").describe()
        assert [node.path for node in description.unreadable] == [denied]
        assert [partition.at for partition in description.partitions] == [P0]
        alice.set_acls(denied, OPEN_ACL_UNSAFE)


def test_a_group_with_forbidden_owners_is_not_deleted(registry: Registry, alice: Any) -> None:
    alice.create(f"{OWNERS}/orders/0", b"x", ephemeral=True, makepath=True)
    for denied in (f"{OWNERS}/orders/0", f"{OWNERS}/orders", OWNERS):
        alice.set_acls(denied, [*only_alice(), *may_world(delete=True)])
        with pytest.raises(NoPermissionError) as caught:
            registry.group("billing").delete()
        assert caught.value.path == denied
        assert alice.exists(f"{OWNERS}/orders/0")
        alice.set_acls(denied, OPEN_ACL_UNSAFE)


@pytest.mark.parametrize("denied", [f"{OFFSETS}/orders", f"{OWNERS}/orders/0", f"{GROUP}/notes"])
def test_a_group_with_a_forbidden_directory_is_not_deleted(registry: Registry, alice: Any, denied: str) -> None:
    alice.create(f"{OFFSETS}/orders/0", b"7", makepath=True)
    alice.create(f"{denied}/below", makepath=True)
    if denied.startswith(OWNERS):
        alice.set(denied, b"of no session")
        denied = f"{denied}/below"
        alice.create(f"{denied}/deep")
    alice.set_acls(denied, only_alice())
    before = dump(alice)
    with pytest.raises(NoPermissionError) as caught:
        registry.group("billing").delete()
    assert caught.value.path == denied
    assert dump(alice) == before


def test_a_group_with_a_forbidden_offset_is_deleted(registry: Registry, alice: Any) -> None:
    alice.create(f"{OFFSETS}/orders/0", b"7", makepath=True)
    alice.set_acls(f"{OFFSETS}/orders/0", only_alice())
    registry.group("billing").delete()
    assert registry.groups() == []


def test_asserting_that_nobody_is_registered_leaves_the_list_of_ids_as_it_was(
    connect: Connect, alice: Any, registry: Registry
) -> None:
    """A server shows hashes only to administrators. An ACL written back without them would lock out all users."""
    registry.group("billing").offsets.set(P0, 5)
    acl = [
        make_digest_acl("alice", SECRET, all=True),
        make_digest_acl("bob", "b", read=True, write=True, create=True, delete=True),
    ]
    alice.create(IDS, b"kept", acl=acl)
    bob = connect(auth=[Digest("bob", "b")]).group("billing")
    for call in (lambda: bob.offsets.reset({P0: 3}), lambda: bob.offsets.delete([P0]), bob.delete):
        with pytest.raises(NoPermissionError) as caught:
            call()
        assert caught.value.path == IDS
    assert alice.get_acls(IDS)[0] == acl
    connect(auth=[Digest("alice", SECRET)]).group("billing").offsets.reset({P0: 3})
    assert alice.get_acls(IDS)[0] == acl
    assert alice.get(IDS)[0] == b"kept"
    assert alice.get(f"{OFFSETS}/orders/0")[0] == b"3"


def test_a_forbidden_node_counts_as_existing(connect: Connect, registry: Registry, alice: Any) -> None:
    """ZooKeeper 3.9 answers NoAuth if such a node exists."""
    alice.create(f"{OFFSETS}/orders/0", b"5", makepath=True)
    alice.set_acls("/", only_alice())
    alice.set_acls("/consumers", may_world(create=True))
    alice.set_acls(GROUP, may_world(create=True))
    group = connect().group("billing")
    assert group.exists()
    assert "billing" in registry
    assert group.describe().offsets == 1
    group.create()
    registry.group("other").create()
    assert sorted(alice.get_children(GROUP)) == ["ids", "offsets", "owners"]
    assert sorted(alice.get_children("/consumers")) == ["billing", "other"]


# Digest


@pytest.mark.parametrize("user", ["", "a:b"])
def test_a_digest_user_with_an_ambiguous_name_is_refused(user: str) -> None:
    with pytest.raises(InvalidOptionError, match="user"):
        Digest(user, SECRET)


def test_a_wrong_digest_password_connects_and_then_has_no_permission(connect: Connect, alice: Any) -> None:
    """ZooKeeper never reports a wrong digest. It counts as another identity."""
    alice.create(f"{OFFSETS}/orders/0", b"5", makepath=True, acl=only_alice())
    with pytest.raises(NoPermissionError):
        connect(auth=[Digest("alice", "wrong")]).group("billing").offsets.fetch(P0)
    found = connect(auth=[Digest("bob", "b"), Digest("alice", SECRET)]).group("billing").offsets.fetch(P0)
    assert found is not None
    assert found.offset == 5


def test_failure_16_after_a_reconnect_nothing_is_sent_before_the_digest(
    proxy: TcpProxy, zookeeper_hosts: str, connect: Connect, alice: Any
) -> None:
    """Two threads write while the connection is cut. The first request on each connection is authenticated."""
    alice.ensure_path("/consumers")
    alice.set_acls("/consumers", only_alice())
    policy = AclPolicy(*[[ALICE]] * 3)
    hosts = f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}"
    registry = connect(hosts, acl=policy, auth=[Digest("alice", SECRET)])
    group = registry.group("billing")
    me = group.instance("me")
    me.register(["orders"])
    claim = me.claim(P0)
    stop, trouble, counts = threading.Event(), [], [0, 0]

    def work(number: int, write: Callable[[int], object]) -> None:
        while not stop.is_set():
            try:
                write(counts[number])
                counts[number] += 1
            except UnavailableError:
                pass
            except ZkgroupsException as error:
                trouble.append(error)
                return

    threads = [
        threading.Thread(target=work, args=(0, claim.commit)),
        threading.Thread(target=work, args=(1, lambda n: (group.offsets.set(P1, n), group.offsets.fetch(P1)))),
    ]
    for thread in threads:
        thread.start()
    for _ in range(20):
        before = proxy.connections
        proxy.cut()
        until(lambda before=before: proxy.connections > before or trouble)
        seen = list(counts)
        until(lambda seen=seen: all(now > then for now, then in zip(counts, seen, strict=True)) or trouble)
    stop.set()
    for thread in threads:
        thread.join(30)
    assert trouble == []
    assert claim.held


# SASL


@pytest.fixture(scope="module", params=[False, True], ids=["lax", "enforcing"])
def sasl(request: pytest.FixtureRequest) -> Iterator[ZooKeeperServer]:
    users = {"alice": SECRET}
    with ZooKeeperServer(sasl=server_side.Sasl(users, enforce=request.param)) as server:
        yield server


def test_with_the_right_sasl_password_commits_continue_after_a_restart_of_the_server(sasl: ZooKeeperServer) -> None:
    with Registry.connect(sasl.address, auth=[Sasl("alice", SECRET)]) as registry:
        group = registry.group("restarts")
        me = group.instance("me")
        me.register(["orders"])
        claim = me.claim(P0)
        claim.commit(1)
        session = registry.session_id
        sasl.restart()
        claim.commit(2)
        group.offsets.set(P1, 3)
        assert registry.session_id == session
        assert [found.offset for found in group.offsets if isinstance(found, CommittedOffset)] == [2, 3]
        me.deregister()


def test_a_connection_lost_during_the_sasl_login_is_restored(sasl: ZooKeeperServer) -> None:
    with TcpProxy(sasl.address) as proxy, Registry.connect(proxy.address, auth=[Sasl("alice", SECRET)]) as registry:
        for reply in (1, 2):
            before = proxy.connections
            fault = proxy.cut_before_reply(reply)
            proxy.cut()
            registry.group("lost").create()
            assert fault.fired
            assert proxy.connections == before + 2


@pytest.mark.parametrize("user", ["alice", "nobody"])
def test_a_wrong_sasl_password_is_reported_in_time(sasl: ZooKeeperServer, user: str) -> None:
    with no_thread_stays(), in_time(TIMEOUT + 6), pytest.raises(AuthenticationError, match=sasl.address) as caught:
        Registry.connect(sasl.address, auth=[Sasl(user, "wrong of alice")], timeout=TIMEOUT)
    assert "rejected the credentials" in str(caught.value)
    assert "wrong of alice" not in str(caught.value)


@pytest.mark.parametrize("sasl", [True], indirect=True, ids=["enforcing"])
@pytest.mark.parametrize("auth", [[], [Digest("alice", SECRET)]], ids=["nothing", "digest"])
def test_a_client_without_sasl_reports_in_time_that_the_server_requires_it(
    sasl: ZooKeeperServer, auth: list[Digest]
) -> None:
    with no_thread_stays(), in_time(TIMEOUT + 6), pytest.raises(AuthenticationError, match="requires some") as caught:
        Registry.connect(sasl.address, auth=auth, timeout=TIMEOUT)
    assert sasl.address in str(caught.value)


def test_a_server_without_sasl_is_reported_in_time(zookeeper: Any) -> None:
    with no_thread_stays(), in_time(TIMEOUT + 6), pytest.raises(AuthenticationError):
        Registry.connect(zookeeper.address, auth=[Sasl("alice", SECRET)], timeout=TIMEOUT)


def test_a_connection_has_one_sasl_identity() -> None:
    with pytest.raises(InvalidOptionError, match="one SASL identity") as caught:
        Registry.connect("127.0.0.1:1", auth=[Sasl("a", SECRET), Sasl("b", SECRET)])
    assert SECRET not in str(caught.value)


# TLS


@dataclass(frozen=True)
class Secure:
    """A TLS server that requires a client certificate, with valid and invalid files."""

    address: str
    plain: str
    files: Path

    @property
    def by_name(self) -> str:
        """The address of the server by a name that is not in its certificate."""
        return self.address.replace("127.0.0.1", "localhost")

    def tls(self, **changes: Any) -> Tls:
        files: dict[str, Any] = {"ca": "ca.pem", "certificate": "client.pem"} | changes
        paths = {
            k: self.files / v if k in ("ca", "certificate", "key") and v is not None else v for k, v in files.items()
        }
        return Tls(**paths)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    files = tmp_path_factory.mktemp("tls")
    ours, theirs = trustme.CA(), trustme.CA()
    ours.cert_pem.write_to_path(str(files / "ca.pem"))
    theirs.cert_pem.write_to_path(str(files / "other-ca.pem"))
    _write(files / "server.pem", ours.issue_cert("127.0.0.1"))
    _write(files / "client.pem", ours.issue_cert("me@example.org"))
    _write(files / "stranger.pem", theirs.issue_cert("me@example.org"))
    split = ours.issue_cert("me@example.org")
    split.cert_chain_pems[0].write_to_path(str(files / "split.pem"))
    (files / "split.key").write_bytes(_key(split, BestAvailableEncryption(SECRET.encode())))
    (files / "junk").write_text("junk")
    with ZooKeeperServer(tls=server_side.Tls(files / "server.pem", files / "ca.pem")) as server:
        yield Secure(server.secure_address, server.address, files)


def _key(cert: trustme.LeafCert, encryption: KeySerializationEncryption) -> bytes:
    key = load_pem_private_key(cert.private_key_pem.bytes(), None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


def _write(path: Path, cert: trustme.LeafCert) -> None:
    """Key and certificate in one file, in a format that Java reads."""
    path.write_bytes(_key(cert, NoEncryption()) + b"".join(pem.bytes() for pem in cert.cert_chain_pems))


def test_tls_with_a_client_certificate_in_one_file_or_two(secure: Secure) -> None:
    one = secure.tls()
    two = secure.tls(certificate="split.pem", key="split.key", key_password=SECRET)
    for tls in (one, two):
        with Registry.connect(secure.address, tls=tls) as registry:
            registry.group("billing").offsets.set(P0, 5)
            assert registry.groups() == ["billing"]
    with Registry.connect(secure.by_name, tls=secure.tls(verify_hostname=False)) as registry:
        assert registry.groups() == ["billing"]


@pytest.fixture
def sockets_that_kazoo_forgets() -> Iterator[None]:
    """After a failed handshake, kazoo leaves the socket to the garbage collector. Collect it in this test."""
    yield
    gc.collect()


@pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
@pytest.mark.usefixtures("sockets_that_kazoo_forgets")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({"certificate": None}, "certificate", id="no certificate"),
        pytest.param({"certificate": "stranger.pem"}, "certificate", id="a certificate of a stranger"),
        pytest.param({"ca": "other-ca.pem"}, "certificate verify failed", id="another authority"),
        pytest.param({"by_name": True}, "Hostname mismatch", id="another name"),
        pytest.param({"plain client": True}, "hung up; it may want TLS", id="a plain client"),
        pytest.param({"plain server": True}, "SSL", id="a plain server"),
    ],
)
def test_tls_errors_are_reported_in_time(secure: Secure, changes: dict[str, Any], reason: str) -> None:
    where = secure.by_name if changes.pop("by_name", False) else secure.address
    where = secure.plain if changes.pop("plain server", False) else where
    tls = None if changes.pop("plain client", False) else secure.tls(**changes)
    with no_thread_stays(), in_time(8.0), pytest.raises(NotConnectedError, match=reason) as caught:
        Registry.connect(where, tls=tls, timeout=2.0)
    assert where in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"ca": "missing.pem"}, "tls ca"),
        ({"ca": "junk"}, "tls ca"),
        ({"ca": "."}, "tls ca"),
        ({"certificate": "missing.pem"}, "tls certificate"),
        ({"certificate": "junk"}, "tls certificate"),
        ({"certificate": "split.pem"}, "tls certificate"),
        ({"key": "missing.pem"}, "tls key"),
        ({"key": "junk"}, "tls certificate"),
        ({"key": "stranger.pem"}, "tls certificate"),
        ({"certificate": None, "key": "client.pem"}, "tls key"),
        ({"certificate": "split.pem", "key": "split.key"}, "tls certificate"),
        ({"certificate": "split.pem", "key": "split.key", "key_password": "wrong one"}, "tls certificate"),
    ],
)
def test_a_file_that_cannot_be_used_for_tls_is_refused_at_once_and_named(
    secure: Secure, changes: dict[str, Any], option: str
) -> None:
    with in_time(AT_ONCE), pytest.raises(InvalidOptionError) as caught:
        Registry.connect(secure.address, tls=secure.tls(**changes), timeout=TIMEOUT)
    assert caught.value.option == option
    assert str(secure.files) in str(caught.value)
    assert "wrong one" not in str(caught.value)


# Passwords


def test_no_password_is_shown_by_options_registries_or_the_log(
    sasl: ZooKeeperServer, caplog: pytest.LogCaptureFixture
) -> None:
    auth = [Digest("alice", SECRET), Sasl("alice", SECRET)]
    with caplog.at_level(1), Registry.connect(sasl.address, auth=auth, acl=AclPolicy([ALICE])) as registry:
        registry.group("billing").create()
        shown = [repr(auth), repr(Tls(key_password=SECRET)), repr(registry), repr(registry.credentials())]
        password = registry.credentials().password
    assert any(record.name == "kazoo.client" and record.levelno == logging.DEBUG for record in caplog.records)
    log = "\n".join(record.getMessage() for record in caplog.records)
    assert SECRET not in "\n".join([*shown, log])
    assert repr(password) not in shown[-1]
    assert password.hex() not in shown[-1]


def test_a_client_without_all_permissions_can_watch_the_description_of_a_group(registry: Registry, alice: Any) -> None:
    alice.create(f"{OFFSETS}/orders/0", b"5", makepath=True)
    alice.create(f"{OFFSETS}/orders/1", b"6", acl=only_alice())
    with registry.group("billing").watch(Watched.OFFSETS) as watch:
        changes = [watch.next(5), watch.next(5)]
    assert [change.path for change in changes if change is not None][-1] == f"{OFFSETS}/orders/0"


def test_a_group_with_a_forbidden_registration_is_in_use(registry: Registry, alice: Any) -> None:
    alice.ensure_path(IDS)
    alice.create(f"{IDS}/me", b"x", ephemeral=True, acl=only_alice())
    with pytest.raises(GroupInUseError) as caught:
        registry.group("billing").delete()
    assert caught.value.instances == ("me",)
