"""Members and claims with each login: while all servers restart in turn, and while the session moves between them."""

from __future__ import annotations

import logging
from contextlib import ExitStack

import pytest
from kazoo.exceptions import NoAuthError

from tests.consumer.conftest import Running, plant_topic
from tests.releases import needs_tls
from zkgroups import CommittedOffset, Registry, TopicPartition
from zkgroups.exceptions import NoPermissionError
from zkgroups.testing import TcpProxy

from .doors import LOGINS, LONGEST, SECRET, Doors

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(600), needs_tls]

P0, P1 = (TopicPartition("orders", number) for number in range(2))
MOVES = 50


@pytest.mark.parametrize("login", LOGINS)
def test_members_keep_their_partitions_while_all_servers_restart_in_turn(doors: Doors, login: str) -> None:
    with ExitStack() as stack:
        registries = [stack.enter_context(doors.connect(login, session_timeout=LONGEST)) for _ in range(2)]
        plant_topic(registries[0].client, "orders", 2)
        group = f"members by {login}"
        members = [
            stack.enter_context(Running(each.group(group), ["orders"], id=id))
            for each, id in zip(registries, "ab", strict=True)
        ]
        for member, at in zip(members, (P0, P1), strict=True):
            member.until_holding(at)
        sessions = [each.session_id for each in registries]
        generations = [member.generations[-1] for member in members]
        offset = 0
        for node in doors.nodes:
            doors.restart(node)
            offset += 10
            for generation in generations:
                generation.commit(dict.fromkeys(generation.partitions, offset))
        assert [member.generations[-1] for member in members] == generations
        assert all(generation.active for generation in generations)
        assert [each.session_id for each in registries] == sessions
        offsets = registries[0].group(group).offsets.fetch_many([P0, P1])
        assert [each.offset for each in offsets.values() if isinstance(each, CommittedOffset)] == [offset] * 2
        refused_to_others(doors, group)


def refused_to_others(doors: Doors, group: str, topic: str = "orders") -> None:
    """Check that a client without a login can neither read nor change the group."""
    offset = f"/consumers/{group}/offsets/{topic}/0"
    with doors.stranger() as stranger:
        for attempt in (
            lambda: stranger.get(offset),
            lambda: stranger.set(offset, b"0"),
            lambda: stranger.get_children(f"/consumers/{group}/offsets"),
            lambda: stranger.create(f"/consumers/{group}/offsets/{topic}/7"),
        ):
            with pytest.raises(NoAuthError):
                stranger.retry(attempt)
    with Registry.connect(doors.plain_address, timeout=LONGEST) as registry, pytest.raises(NoPermissionError):
        registry.group(group).offsets.fetch(TopicPartition(topic, 0))


@pytest.mark.parametrize("login", LOGINS)
def test_after_each_of_fifty_reconnects_the_session_is_logged_in_and_no_secret_is_logged(
    doors: Doors, login: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each reconnect leads to any of the servers. Both a fenced commit and a read need the login."""
    caplog.set_level(1)
    with ExitStack() as stack:
        proxies = [stack.enter_context(TcpProxy(address)) for address in doors.addresses(login)]
        hosts = ",".join(proxy.address for proxy in proxies)
        registry = stack.enter_context(doors.connect(login, hosts, session_timeout=LONGEST))
        group = registry.group(f"moves by {login}")
        me = group.instance("me")
        me.register(["orders"])
        claim, session = me.claim(P0), registry.session_id
        for number in range(MOVES):
            before = sum(proxy.connections for proxy in proxies)
            for proxy in proxies:
                proxy.cut()
            claim.commit(number)
            group.offsets.set(P1, number)
            found = group.offsets.fetch_many([P0, P1])
            assert [each.offset for each in found.values() if isinstance(each, CommittedOffset)] == [number] * 2
            assert sum(proxy.connections for proxy in proxies) > before
        assert registry.session_id == session
        assert claim.held
        assert all(proxy.connections > 1 for proxy in proxies), "it did not come to all servers"
        password = registry.credentials().password
        me.deregister()
    refused_to_others(doors, f"moves by {login}")
    debugged = [record for record in caplog.records if record.levelno <= logging.DEBUG]
    assert any(record.name == "kazoo.client" for record in debugged)
    log = "\n".join(record.getMessage() for record in caplog.records)
    for secret in (SECRET, repr(SECRET)[1:-1], password.hex(), repr(password)[2:-1]):
        assert secret not in log
