"""Failures 14 and 17, rule 6: nothing read is trusted, and no name leads outside its directory."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zkgroups import (
    CommittedOffset,
    Consumergroup,
    GroupState,
    InstanceState,
    Owner,
    Registration,
    Registry,
    TopicPartition,
)
from zkgroups.core.znodes.topic_partition import check_name
from zkgroups.exceptions import InvalidNameError
from zkgroups.testing import TcpProxy

from ..releases import has
from .helpers import GROUP, P0
from .tree import dump

pytestmark = pytest.mark.zookeeper


POISON = {
    "empty": b"",
    "no UTF-8": b"\xff\xfe",
    "no pattern": b'{"version":1,"subscription":{"orders":1}}',
    "no expression": b'{"subscription":{"(":1},"pattern":"white_list"}',
    "nested too deep": b"[" * 100_000,
    "a huge value": b'{"subscription":{"orders":1},"pattern":"static","x":"' + b"x" * 500_000 + b'"',
}


def test_failure_14_unreadable_members_are_marked_and_the_rest_of_the_group_becomes_stable(
    registry: Registry, group: Consumergroup, raw: Any
) -> None:
    raw.create("/brokers/topics/orders", b'{"version":1,"partitions":{"0":[1]}}', makepath=True)
    for name, data in POISON.items():
        raw.create(f"{GROUP}/ids/{name}", data, ephemeral=True, makepath=True)
    raw.create(f"{GROUP}/owners/orders/nonsense", b"x", ephemeral=True, makepath=True)
    raw.create(f"{GROUP}/owners/orders/7", b"\xff", ephemeral=True)
    raw.create(f"{GROUP}/owners/orders/8", b"nobody's session")
    raw.create(f"{GROUP}/offsets/orders/7", b"abc", makepath=True)
    raw.create(f"{GROUP}/offsets/orders/x", b"1")
    with group.instance("me") as me:
        me.register(["orders"])
        me.claim(P0).commit(5)
        found = group.describe()
    assert found.state is GroupState.STABLE
    malformed = {node.path.removeprefix(GROUP + "/") for node in found.unreadable}
    assert malformed == {f"ids/{name}" for name in POISON} | {
        "owners/orders/nonsense",
        "owners/orders/7",
        "owners/orders/8",
        "offsets/orders/7",
        "offsets/orders/x",
    }
    [good] = [instance for instance in found.instances if isinstance(instance.registration, Registration)]
    assert (good.id, good.state, good.owned) == ("me", InstanceState.STABLE, (P0,))
    assert [(p.at, p.instance, p.offset and p.offset.offset) for p in found.partitions] == [(P0, "me", 5)]


BAD_NAMES = ["", "a/ids", "..", ".", "a\nb", "\ud800", "x" * 300_000, None]


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: ascii(name)[:12])
def test_failure_17_a_bad_name_is_refused_before_any_request(
    proxied: Registry, proxy: TcpProxy, raw: Any, name: Any
) -> None:
    group = proxied.group("billing")
    instance = group.instance("me")
    instance.register(["orders"])
    claim = instance.claim(P0)
    before, tree = proxy.requests, dump(raw, "/")
    attempts = [
        lambda: proxied.group(name),
        lambda: name in proxied,
        lambda: proxied.topic(name),
        lambda: group.copy(name),
        lambda: instance.update([name]),
        lambda: TopicPartition(name, 0),
        lambda: group.offsets.set(TopicPartition(name, 0), 1),
    ]
    if name is not None:  # None requests a new id
        attempts.append(lambda: group.instance(name))
    for attempt in attempts:
        with pytest.raises(InvalidNameError):
            attempt()
    assert proxy.requests == before
    assert dump(raw, "/") == tree
    assert claim.held


GOOD_NAMES = [" a ", "zookeeper", "%2F", "e\u0301", "日本", "ids"]


@pytest.mark.parametrize("name", GOOD_NAMES, ids=ascii)
def test_failure_17_a_name_that_zookeeper_allows_is_stored_unchanged(registry: Registry, raw: Any, name: str) -> None:
    at = TopicPartition(name, 3)
    group = registry.group(name)
    with group.instance(name) as me:
        me.register([name])
        with me.claim(at) as claim:
            claim.commit(7)
            assert [owner.at for owner in group.owners() if isinstance(owner, Owner)] == [at]
        assert [instance.id for instance in group.instances()] == [name]
    assert [offset.at for offset in group.offsets if isinstance(offset, CommittedOffset)] == [at]
    assert [group.name for group in registry] == [name]
    assert set(dump(raw, "/consumers")) == {
        "/consumers",
        f"/consumers/{name}",
        f"/consumers/{name}/ids",
        f"/consumers/{name}/owners",
        f"/consumers/{name}/owners/{name}",
        f"/consumers/{name}/offsets",
        f"/consumers/{name}/offsets/{name}",
        f"/consumers/{name}/offsets/{name}/3",
    }


def allowed(name: str) -> bool:
    try:
        return bool(check_name("name", name))
    except InvalidNameError:
        return False


ACCEPTED_BY_3_4 = "" if has("3.5.0") else "\x1f\x7f\x9f"


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(name=st.text(min_size=1, max_size=8))
def test_failure_17_the_server_accepts_the_same_names_as_zkgroups(raw: Any, name: str) -> None:
    """The server creates all accepted names unchanged, and rejects all refused ones.

    Names that kazoo rewrites (slashes and dots) or that end its connection (surrogates and above) are left out.
    """
    raw.ensure_path("/names")
    if allowed(name):
        raw.create(f"/names/{name}")
        assert raw.get_children("/names") == [name]
        raw.delete(f"/names/{name}")
    elif {"/", *ACCEPTED_BY_3_4}.isdisjoint(name) and name not in {".", ".."} and all(ord(c) < 0xD800 for c in name):
        try:
            made = raw.create(f"/names/{name}")
        except Exception:
            return
        pytest.fail(f"the server made {made!r}, which we refuse")
