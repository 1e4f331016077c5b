"""A lost connection makes work wait. A lost session makes all members join again, and refuses their old commits."""

from __future__ import annotations

import time

import pytest

from tests.testing.waiting import eventually
from zkgroups import Consumergroup, Registry, TopicPartition
from zkgroups.coordinator import MembershipLost
from zkgroups.testing import TcpProxy, expire_session

from .conftest import Connect, Join, Serve
from .old_members import ALL, claim, owners, register
from .served import Served

pytestmark = pytest.mark.zookeeper

AT = TopicPartition("orders", 0)
SESSION = 10.0
"""In seconds: long enough for a machine that stands still before the connection is cut."""


def losses(served: Served) -> list[str | None]:
    return [event.group for event in served.events if isinstance(event, MembershipLost)]


def test_members_join_again_after_their_session_has_expired(
    registry: Registry, group: Consumergroup, connect: Connect, serve: Serve, orders: None, join: Join
) -> None:
    own = connect()
    served = serve(own)
    members = [join(served=served, client_id=name) for name in "ab"]
    assert eventually(lambda: [len(member.assigned) for member in members] == [3, 3])
    former = {member.member_id for member in members}
    expire_session(own.client)
    # The monitor and a check of the group may both notice it, at the same moment.
    assert eventually(lambda: set(losses(served)) == {"billing"})
    assert eventually(lambda: len(owners(group)) == 6 and not former & {id[:-2] for id in owners(group).values()})
    assert eventually(lambda: [len(member.assigned) for member in members] == [3, 3])
    assert all("UNKNOWN_MEMBER_ID" in member.errors for member in members)
    assert members[0].commit(5, min(members[0].assigned)) == {min(members[0].assigned): "NONE"}


def test_a_commit_of_an_expired_session_changes_nothing(
    group: Consumergroup, connect: Connect, serve: Serve, orders: None, join: Join
) -> None:
    """Another client claims the partition, and has committed nothing: there is not even an offset to compare."""
    own, other = connect(), connect()
    member = join(served=serve(own))
    assert eventually(lambda: member.assigned == ALL)
    member.kill()
    expire_session(own.client)
    register(other.client, "billing", "billing_a", {"orders": 1})
    claim(other.client, "billing", "billing_a-0", "orders", 0)
    assert member.commit(5, AT) == {AT: "UNKNOWN_MEMBER_ID"}
    assert group.offsets.fetch(AT) is None


def test_work_waits_for_a_lost_connection(
    group: Consumergroup, proxied: Registry, proxy: TcpProxy, serve: Serve, orders: None, join: Join
) -> None:
    served = serve(proxied)
    member = join(served=served)
    assert eventually(lambda: member.assigned == ALL)
    proxy.refuse()
    proxy.cut()
    committed = member.send_use(5, AT)
    joining = join(served=served, client_id="b")
    assert not eventually(lambda: committed.done() or joining.assigned, timeout=1.0)
    proxy.accept()
    assert committed.result(30).errors == {AT: 0}
    assert eventually(lambda: (len(member.assigned), len(joining.assigned)) == (3, 3))
    assert losses(served) == []


def test_members_are_lost_before_other_clients_can_take_their_partitions(
    group: Consumergroup,
    proxy: TcpProxy,
    zookeeper_hosts: str,
    connect: Connect,
    serve: Serve,
    orders: None,
    join: Join,
) -> None:
    """Without a connection nobody reports the expired session: the gateway's own clock ends the membership first."""
    own = connect(proxy.address + "/" + zookeeper_hosts.partition("/")[2], session_timeout=SESSION)
    served = serve(own)
    member, other = join(served=served, client_id="a"), join(served=serve(), client_id="b")
    assert eventually(lambda: (len(member.assigned), len(other.assigned)) == (3, 3))
    began = time.monotonic()
    own.client.exists("/consumers/billing")  # from here on, the session lives for as long as it was granted
    proxy.refuse()
    proxy.cut()

    def session_may_have_ended() -> bool:
        """A slow machine may look too late."""
        return time.monotonic() - began > SESSION - 0.5

    assert eventually(lambda: losses(served) == ["billing"])
    assert len(owners(group)) == 6 or session_may_have_ended()
    assert eventually(lambda: member.assigned == frozenset())
    assert len(other.assigned) == 3 or session_may_have_ended()
    assert eventually(lambda: other.assigned == ALL)
    proxy.accept()
    assert eventually(lambda: (len(member.assigned), len(other.assigned)) == (3, 3))


def test_nodes_of_a_session_that_lived_on_are_removed(
    group: Consumergroup, connect: Connect, serve: Serve, orders: None, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock ended the membership, but the session survived: its old registrations must not block partitions."""
    own = connect()
    served = serve(own)
    member = join(served=served)
    assert eventually(lambda: member.assigned == ALL)
    [before] = group.instances()
    session = type(served.storage._context.session)
    with monkeypatch.context() as patched:
        patched.setattr(session, "alive", lambda *_: False)
        assert eventually(lambda: losses(served))
    assert eventually(lambda: [after.id != before.id for after in group.instances()] == [True])
    assert eventually(
        lambda: member.assigned == ALL and {id[:-2] for id in owners(group).values()} == {member.member_id}
    )
    [after] = group.instances()
    assert (after.id == before.id, after.session) == (False, before.session)
