"""Walks through all groups, and failure 15: very large groups, very many groups, and lists of almost a megabyte."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kazoo.security import make_digest_acl

from tests.lasting import lasting_client
from zkgroups import CommittedOffset, GroupState, MalformedNode, Registry, TopicPartition, UnreadableNode
from zkgroups.core.znodes.codecs import decode_offset
from zkgroups.core.znodes.topic_partition import MAX_PARTITION, is_topic
from zkgroups.testing import Op, TcpProxy, fresh_chroot
from zkgroups.zookeeper.requests.transaction import MAX_REQUEST_BYTES

from ..core.strategies import NAMES
from ..releases import needs_multiread
from .helpers import each, plant, plant_offsets, seed, shown

# On one worker, because the seeded trees are large.
pytestmark = [pytest.mark.zookeeper, pytest.mark.xdist_group("large")]


ALICE = [make_digest_acl("alice", "secret", all=True)]


# In few requests


@pytest.fixture
def spent(proxied: Registry, proxy: TcpProxy) -> Callable[[Callable[[], object]], dict[int, int]]:
    """The requests of a call by type, without those of the second connection."""
    proxied._context.session.reads_many = {}

    def spent(call: Callable[[], object]) -> dict[int, int]:
        call()  # probes the server
        before = proxy.requests_by_type
        call()
        return dict(proxy.requests_by_type - before)

    return spent


@needs_multiread
def test_all_offsets_are_read_in_few_requests(proxied: Registry, spent: Any, raw: Any) -> None:
    expected = plant_offsets(raw, 40, 5, 10)
    found: list[str] = []
    types = spent(lambda: found.extend(shown(proxied.offsets())))
    assert found == expected * 2
    assert types.keys() == {Op.GET_CHILDREN, Op.MULTI_READ}
    assert sum(types.values()) <= 30


@needs_multiread
def test_many_groups_are_described_in_few_requests(proxied: Registry, spent: Any, raw: Any) -> None:
    plant_offsets(raw, 60, 3, 5)
    plant(raw, [f"/consumers/g{g:04}/ids/me" for g in range(60)], b'{"subscription":{"t00":1},"pattern":"static"}')
    plant(raw, [f"/consumers/g{g:04}/owners/t00/{p}" for g in range(60) for p in range(5)], b"me")
    types = spent(lambda: list(proxied.describe()))
    assert sum(types.values()) <= 30
    assert types.get(Op.GET_DATA, 0) <= 3


@needs_multiread
def test_the_directories_of_a_claim_over_many_topics_are_created_in_few_requests(
    proxied: Registry, proxy: TcpProxy, raw: Any
) -> None:
    plant(raw, [f"/consumers/billing/owners/t{t}" for t in range(0, 300, 3)])
    me = proxied.group("billing").instance("me")
    me.register(["orders"])
    before = proxy.requests
    with me.claim_many([TopicPartition(f"t{t}", 0) for t in range(300)]) as claims:
        assert len(raw.get_children("/consumers/billing/owners")) == 300
        assert proxy.requests - before <= 30
        claims.commit(dict.fromkeys(claims, 5))
        assert len(raw.get_children("/consumers/billing/offsets")) == 300
        assert proxy.requests - before <= 70


# Concurrent changes and forbidden nodes


def test_nodes_deleted_between_listing_and_reading_are_left_out(registry: Registry, raw: Any) -> None:
    """Delete a group, a part of a group, a topic and a partition."""
    expected = plant_offsets(raw, 120, 3, 20)
    listed = registry.offsets()
    found = [next(listed) for _ in range(50)]
    gone = ["g0070", "g0080/offsets", "g0090/offsets/t01", "g0100/offsets/t02/7", "g0119"]
    for path in gone:
        raw.delete(f"/consumers/{path}", recursive=True)
    prefixes = [path.replace("/offsets", "") + "/" for path in gone]
    left = [name for name in expected if not f"{name}/".startswith(tuple(prefixes))]
    assert shown([*found, *listed]) == left
    assert len(left) == len(expected) - 60 - 60 - 20 - 1 - 60


# Comparison with single reads


ODD_DATA = st.sampled_from([b"", b"+4", b"07", b"7 ", b"7.5", b"-1", b"x", b"9" * 18, b"9" * 19, b"9" * 30, b"x" * 300])


ODD_NAMES = st.sampled_from(["x", "+1", "01", "-1", "٣", "1_0", str(MAX_PARTITION), str(MAX_PARTITION + 1), "9" * 20])


PARTITIONS = st.integers(0, 120).map(str) | ODD_NAMES


DATA = st.integers(0, 2**63).map(lambda n: b"%d" % n) | ODD_DATA


TOPICS = st.dictionaries(NAMES, st.dictionaries(PARTITIONS, DATA, max_size=12), max_size=4)


TREES = st.dictionaries(NAMES, st.none() | TOPICS, max_size=6)


def modelled(tree: dict[str, dict[str, dict[str, bytes]] | None]) -> list[tuple[Any, ...]]:
    """The expected result of `registry.offsets`."""
    found: list[tuple[Any, ...]] = []
    for group, topics in sorted(tree.items()):
        for topic, partitions in sorted((topics or {}).items()):
            for name in sorted(partitions, key=by_number):
                path = f"/consumers/{group}/offsets/{topic}/{name}"
                value = decode_offset(path, partitions[name])
                if number_of(name) is None or not is_topic(topic):
                    found.append((path, partitions[name], "its name is not a partition"))
                elif isinstance(value, UnreadableNode):
                    found.append((path, partitions[name], value.reason))
                else:
                    found.append((group, TopicPartition(topic, int(name)), value))
    return found


def number_of(name: str) -> int | None:
    return int(name) if name.isascii() and name.isdigit() and str(int(name)) == name and int(name) < 2**31 else None


def by_number(name: str) -> tuple[int, str]:
    """Names that are not partitions come first."""
    number = number_of(name)
    return (-1, name) if number is None else (number, "")


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(TREES)
def test_the_offsets_of_any_tree_equal_its_nodes(
    registry: Registry, raw: Any, tree: dict[str, dict[str, dict[str, bytes]] | None]
) -> None:
    raw.delete("/consumers", recursive=True)
    raw.create("/consumers")
    for group, topics in tree.items():
        root = f"/consumers/{group}"
        nodes = {root: b""} | ({} if topics is None else {f"{root}/offsets": b""})
        for topic, partitions in (topics or {}).items():
            nodes[f"{root}/offsets/{topic}"] = b""
            nodes |= {f"{root}/offsets/{topic}/{name}": data for name, data in partitions.items()}
        each(raw.create_async(path, data) for path, data in nodes.items())
    found = [
        (o.group, o.at, o.offset) if isinstance(o, CommittedOffset) else (o.path, o.data, o.reason)
        for o in registry.offsets()
    ]
    assert found == modelled(tree)
    for group in registry:
        mine = list(group.offsets)
        assert mine == [o for o in registry.offsets() if _is_of(o, group.name)]


def _is_of(offset: CommittedOffset | UnreadableNode, group: str) -> bool:
    if isinstance(offset, CommittedOffset):
        return offset.group == group
    return offset.path.startswith(f"/consumers/{group}/")


def test_groups_described_together_equal_groups_described_alone(registry: Registry, group: Any, raw: Any) -> None:
    """Members of all kinds, including patterns, which match every topic; in order, and over several batches."""
    for number, topic in enumerate(["orders", "order-lines", "refunds"]):
        partitions = ",".join(f'"{n}":[1]' for n in range(number + 1))
        raw.create(f"/brokers/topics/{topic}", f'{{"partitions":{{{partitions}}}}}'.encode(), makepath=True)
    plant_offsets(raw, 70, 2, 2)
    for name, pattern, expression in [
        ("g0001", "white_list", "order.*"),
        ("g0002", "black_list", "order.*"),
        ("g0003", "static", "refunds"),
        ("g0066", "white_list", ".*"),
    ]:
        data = f'{{"subscription":{{"{expression}":1}},"pattern":"{pattern}"}}'.encode()
        raw.create(f"/consumers/{name}/ids/me", data, ephemeral=True, makepath=True)
    raw.create("/consumers/g0003/owners/refunds/0", b"me", ephemeral=True, makepath=True)
    raw.create("/consumers/g0004/ids/broken", b"{", ephemeral=True, makepath=True)
    raw.set_acls("/consumers/g0005/offsets/t00", ALICE)
    names = registry.groups()
    together = list(registry.describe())
    assert [found.group for found in together] == names
    assert together == [registry.group(name).describe() for name in names]
    assert {d.group: d.subscribed for d in together if d.subscribed} == {
        "g0001": ("order-lines", "orders"),
        "g0002": ("refunds",),
        "g0003": ("refunds",),
        "g0066": ("order-lines", "orders", "refunds"),
    }
    asked = ["nobody", *reversed(names), "nothing"]
    found = list(registry.describe(asked))
    assert [d.group for d in found] == asked
    assert [found[0].state, found[-1].state] == [GroupState.DEAD] * 2
    assert found[1:-1] == together[::-1]
    assert list(registry.describe([])) == []


# In bounded memory


TOPICS, PARTITIONS = 50, 1_000


GROUPS = 5_000


def seed_offsets(client: Any, group: str, topics: int, partitions: int) -> None:
    root = f"/consumers/{group}/offsets"
    client.ensure_path(root)
    seed(client, [f"{root}/t{topic:02}" for topic in range(topics)])
    seed(client, [f"{root}/t{topic:02}/{n}" for topic in range(topics) for n in range(partitions)])


def long_name(n: int) -> str:
    return f"{n:04}".ljust(200, "x")


@pytest.fixture(scope="module")
def large(zookeeper: Any) -> Iterator[str]:
    """A chroot with one group of 50,000 offsets, one of 5,000, and thousands of groups with long names."""
    with fresh_chroot(zookeeper) as hosts:
        with lasting_client(hosts) as client:
            seed_offsets(client, "big", TOPICS, PARTITIONS)
            client.set("/consumers/big/offsets/t25/500", b"7.5")
            seed_offsets(client, "small", 5, PARTITIONS)
            seed(client, [f"/consumers/{long_name(n)}" for n in range(GROUPS)])
        yield hosts


@pytest.fixture
def registry_of_large(large: str) -> Iterator[Registry]:
    with Registry.connect(large) as registry:
        yield registry


READ_ALL = """
import re, sys, time
from collections import Counter
from pathlib import Path
from zkgroups import Registry

def peak_kib():  # not ru_maxrss, which starts at the value of the parent
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

with Registry.connect(sys.argv[1]) as registry:
    for group in ("small", "small", "big"):
        began = time.process_time()  # other processes do not count
        print(dict(Counter(type(found).__name__ for found in registry.group(group).offsets.fetch_all())))
        print(peak_kib(), time.process_time() - began)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of the memory is read from Linux's /proc")
def test_failure_15_fifty_thousand_offsets_are_read_in_the_memory_of_five_thousand_and_ten_times_its_time(
    large: str,
) -> None:
    """A list of the values alone would take over 10 MB. An unreadable offset among them is reported."""
    command = [sys.executable, "-c", READ_ALL, large]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines[0::2] == [
        *2 * [str({"CommittedOffset": 5 * PARTITIONS})],
        str({"CommittedOffset": TOPICS * PARTITIONS - 1, "MalformedNode": 1}),
    ]
    _, (before, quick), (after, slow) = (map(float, line.split()) for line in lines[1::2])
    print(f"{slow / quick:.1f} times the time")
    assert after - before < 7 * 1024
    assert slow < 3 * 10 * quick


def test_failure_15_five_thousand_groups_are_listed(registry_of_large: Registry) -> None:
    expected = [*(long_name(n) for n in range(GROUPS)), "big", "small"]
    assert 0.95 < sum(len(name) + 4 for name in expected) / MAX_REQUEST_BYTES < 1
    assert registry_of_large.groups() == expected
    assert len(registry_of_large.groups()) == len(expected)
    assert [group.name for group in registry_of_large] == expected
    assert long_name(17) in registry_of_large


def test_failure_15_a_topic_with_almost_a_megabyte_of_names_is_read_and_deleted(registry: Registry, raw: Any) -> None:
    group = registry.group("billing")
    group.offsets.set(TopicPartition("after", 0), 1)
    raw.create("/consumers/billing/offsets/a")
    seed(raw, [f"/consumers/billing/offsets/a/{long_name(n)}" for n in range(GROUPS)])
    *malformed, good = group.offsets.fetch_all()
    assert len(malformed) == GROUPS
    assert all(isinstance(found, MalformedNode) for found in malformed)
    assert isinstance(good, CommittedOffset)
    group.delete()
    assert not group.exists()


# The longest names that Kafka accepts, which do not fit into three requests.


HELD = [TopicPartition(f"t{topic}".ljust(249, "x"), n) for topic in range(5) for n in range(1_000)]


@pytest.fixture
def owners(raw: Any) -> str:
    root = "/consumers/billing/owners"
    raw.ensure_path(root)
    seed(raw, [f"{root}/{topic}" for topic in dict.fromkeys(at.topic for at in HELD)])
    return root


def left(client: Any, root: str) -> list[str]:
    topics = client.get_children(root)
    return sorted(f"{topic}/{name}" for topic in topics for name in client.get_children(f"{root}/{topic}"))


def test_failure_15_five_thousand_partitions_are_claimed_committed_and_released_in_few_requests(
    proxied: Registry, proxy: TcpProxy, raw: Any, owners: str
) -> None:
    group = proxied.group("billing")
    me = group.instance("me")
    me.register(["orders"])

    def transactions() -> int:
        return proxy.requests_by_type[Op.MULTI]

    before = transactions()
    with me.claim_many(HELD) as claims:
        assert transactions() - before < 8
        assert len(left(raw, owners)) == len(claims.verify()) == len(HELD)
        claims.commit(dict.fromkeys(HELD, 1))
        before = transactions()
        claims.commit({at: at.partition + 1 for at in HELD})
        assert transactions() - before < 15
        before = transactions()
    assert transactions() - before < 8
    assert left(raw, owners) == []
    found = group.offsets.fetch_many(HELD)
    assert [found[at].offset for at in HELD] == [at.partition + 1 for at in HELD]  # type: ignore[union-attr]
