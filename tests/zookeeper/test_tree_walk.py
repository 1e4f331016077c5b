"""Walking all groups: few requests, bounded memory, and concurrent changes of the tree."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kazoo.security import make_digest_acl

from tests.lasting import lasting_client
from zkgroups import CommittedOffset, ForbiddenNode, GroupState, Registry, TopicPartition, UnreadableNode
from zkgroups.core.znodes.names import MAX_PARTITION, is_topic
from zkgroups.core.znodes.offset_codec import decode_offset
from zkgroups.core.znodes.paths import Part
from zkgroups.testing import Op, TcpProxy, ZooKeeperServer
from zkgroups.zookeeper.reading import tree_walk
from zkgroups.zookeeper.requests.bulk_read_pace import FIRST
from zkgroups.zookeeper.requests.node import Node

from ..core.strategies import NAMES
from ..releases import MULTIREAD, has, needs_multiread
from .bulk_reads import each, plant, plant_offsets, shown
from .test_large import long_name, seed
from .test_read_only import ensemble, minority

__all__ = ["ensemble"]

pytestmark = pytest.mark.zookeeper

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
def test_a_group_with_many_topics_is_deleted_after_few_reads(proxied: Registry, proxy: TcpProxy, raw: Any) -> None:
    plant(raw, [f"/consumers/billing/{part}/t{t}/0" for part in ("offsets", "owners") for t in range(300)])
    list(proxied.offsets())
    before = proxy.requests
    raw.delete("/consumers/billing/owners", recursive=True)
    proxied.group("billing").delete()
    assert not raw.exists("/consumers/billing")
    assert proxy.requests - before <= 20


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


def test_the_first_group_is_available_before_all_are_read_even_if_they_are_empty(registry: Registry) -> None:
    drawn = 0

    def names() -> Iterator[str]:
        nonlocal drawn
        for drawn in range(20_000):
            yield f"g{drawn}"

    next(tree_walk.registrations(registry._context, names()))
    assert drawn < 8_000


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


def test_a_partition_deleted_after_its_topic_was_listed_is_left_out(registry: Registry, raw: Any) -> None:
    plant_offsets(raw, 1, 1, 2_000)
    reading = registry.offsets()
    found = [next(reading)]
    raw.delete("/consumers/g0000/offsets/t00/1999")
    assert shown([*found, *reading]) == [f"g0000/t00/{n}" for n in range(1_999)]


def test_a_group_deleted_between_listing_and_describing_is_dead(registry: Registry, raw: Any) -> None:
    plant_offsets(raw, 100, 1, 1)
    describing = registry.describe()
    first = next(describing)
    raw.delete("/consumers/g0099", recursive=True)
    described = [first, *describing]
    assert [group.group for group in described] == [*registry.groups(), "g0099"]
    assert [group.state for group in described] == [GroupState.EMPTY] * 99 + [GroupState.DEAD]


def test_forbidden_nodes_are_reported_in_order_and_all_others_are_read(registry: Registry, raw: Any) -> None:
    names = plant_offsets(raw, 6, 3, 10)
    for path in ("g0001", "g0002/offsets", "g0003/offsets/t01", "g0004/offsets/t02/5"):
        raw.set_acls(f"/consumers/{path}", ALICE)
    hidden = {"g0002": "g0002/offsets", "g0003/t01": "g0003/offsets/t01", "g0004/t02/5": "g0004/offsets/t02/5"}
    expected: list[str] = []
    for name in names:
        above = [start for start in hidden if f"{name}/".startswith(f"{start}/")]
        denied = [repr(ForbiddenNode(f"/consumers/{hidden[s]}")) for s in above]
        expected += [name] if not above else [d for d in denied if d not in expected]
    assert shown(registry.offsets()) == expected


# Comparison with single reads


ODD_DATA = st.sampled_from([b"", b"+4", b"07", b"7 ", b"7.5", b"-1", b"x", b"9" * 18, b"9" * 19, b"9" * 30, b"x" * 300])
ODD_NAMES = st.sampled_from(["x", "+1", "01", "-1", "٣", "1_0", str(MAX_PARTITION), str(MAX_PARTITION + 1), "9" * 20])
PARTITIONS = st.integers(0, 120).map(str) | ODD_NAMES
DATA = st.integers(0, 2**63).map(lambda n: b"%d" % n) | ODD_DATA
TOPICS = st.dictionaries(NAMES, st.dictionaries(PARTITIONS, DATA, max_size=12), max_size=4)
GROUPS = st.dictionaries(NAMES, st.none() | TOPICS, max_size=6)


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


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(GROUPS)
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


@given(st.sets(PARTITIONS, max_size=20).map(list))
def test_names_of_partitions_are_sorted_by_number_after_all_other_names(names: list[str]) -> None:
    assert list(tree_walk.sort_partitions(names)) == sorted(names, key=by_number)


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


def test_after_a_sync_everything_that_was_written_before_is_read(registry: Registry, raw: Any) -> None:
    for number in range(20):
        raw.ensure_path(f"/consumers/g{number}")
        registry.sync()
        assert len(registry.groups()) == number + 1


def test_the_tree_of_a_server_without_a_quorum_is_read(ensemble: Any, request: Any) -> None:
    name = request.node.name
    with Registry.connect(ensemble.address, timeout=30.0) as writer:
        writer.group(name).offsets.set_many({TopicPartition(f"t{n:02}", p): n for n in range(30) for p in range(5)})
        writer.sync()
    with minority(ensemble), Registry.connect(ensemble.address, timeout=30.0, read_only=True) as registry:
        assert registry.server_is_read_only
        registry.sync()  # it cannot answer, and is not asked
        found = [o for o in registry.offsets() if isinstance(o, CommittedOffset) and o.group == name]
        assert [o.offset for o in found] == [n for n in range(30) for _ in range(5)]
        assert list(registry._context.session.reads_many.values()) == [True] * has(MULTIREAD)
        [described] = registry.describe([name])
        assert described.offsets == 150


# In bounded memory

WALK = """
import re, sys
from pathlib import Path
from zkgroups import Registry

def peak_kib():  # not ru_maxrss, which starts at the value of the parent
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

for hosts in sys.argv[1:]:
    with Registry.connect(hosts) as registry:
        print(sum(1 for _ in registry.offsets()), peak_kib())
"""


@pytest.fixture(scope="module")
def roomy() -> Iterator[ZooKeeperServer]:
    """A separate server for large trees. Servers of 3.6 and 3.8 keep much of it twice."""
    with ZooKeeperServer(jvm_options=["-Xmx2g"]) as server:
        yield server


def counted_and_peaks(*hosts: str) -> Iterator[tuple[int, float]]:
    """The number of offsets in each tree, read one after the other, and the peak memory after each, in MB."""
    command = [sys.executable, "-c", WALK, *hosts]
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        count, peak = line.split()
        yield int(count), int(peak) / 1024


linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from Linux's /proc")


@linux
def test_two_hundred_thousand_offsets_are_read_in_the_memory_of_twenty_thousand(roomy: ZooKeeperServer) -> None:
    """A list of the values alone would take over 60 MB."""
    small, large = f"{roomy.address}/small", f"{roomy.address}/large"
    for hosts, groups in ((small, 200), (large, 2_000)):
        with chroot(hosts) as client:
            plant_offsets(client, groups, 5, 20)
    (few, before), (many, after) = counted_and_peaks(small, large)
    assert (few, many) == (20_000, 200_000)
    assert after - before < 10


@contextmanager
def chroot(hosts: str) -> Iterator[Any]:
    """A client in a new chroot."""
    address, _, name = hosts.partition("/")
    with lasting_client(address) as client:
        client.create(f"/{name}")
        client.chroot = f"/{name}"
        yield client


@linux
def test_values_of_nine_hundred_kilobytes_are_read_in_the_memory_of_the_first_few_of_them(
    roomy: ZooKeeperServer,
) -> None:
    """The first request is sent alone, so that later requests are small enough."""
    first, more = f"{roomy.address}/first", f"{roomy.address}/more"
    for hosts, count in ((first, FIRST), (more, FIRST + 100)):
        with chroot(hosts) as client:
            client.ensure_path("/consumers/g/offsets/t")
            each(client.create_async(f"/consumers/g/offsets/t/{n}", b"x" * 900_000) for n in range(count))
    (_, before), (count, after) = counted_and_peaks(first, more)
    assert count == FIRST + 100
    assert after - before < 20


@linux
def test_lists_of_a_megabyte_and_topics_of_fifty_thousand_partitions_are_read_in_little_memory(
    roomy: ZooKeeperServer,
) -> None:
    little, long = f"{roomy.address}/little", f"{roomy.address}/long"
    with chroot(little) as client:
        plant_offsets(client, 2, 2, 500)
    with chroot(long) as client:
        for group in ("names", "numbers"):
            client.ensure_path(f"/consumers/{group}/offsets/t")
        seed(client, [f"/consumers/names/offsets/t/{long_name(n)}" for n in range(4_900)])
        seed(client, [f"/consumers/numbers/offsets/t/{n}" for n in range(50_000)])
    (_, before), (count, after) = counted_and_peaks(little, long)
    assert count == 54_900
    assert after - before < 40


# The walk itself


def test_a_walk_of_nodes_has_their_stats(registry: Registry, raw: Any) -> None:
    plant_offsets(raw, 2, 2, 10)
    found = list(tree_walk.nodes(tree_walk.leaves(registry._context, ["g0000", "g0001"], Part.OFFSETS)))
    assert len(found) == 40
    for place, name, node in found:
        path = f"/consumers/{place.group}/offsets/{place.topic}/{name}"
        assert node == Node.of(path, *raw.get(path))


def test_topics_that_are_not_selected_are_not_read(registry: Registry, raw: Any) -> None:
    plant_offsets(raw, 2, 3, 4)
    raw.set_acls("/consumers/g0001/offsets", ALICE)
    asked: list[tuple[str, str]] = []

    def wanted(group: str, topic: str) -> bool:
        asked.append((group, topic))
        return topic == "t01"

    found = list(tree_walk.nodes(tree_walk.leaves(registry._context, ["g0000", "g0001"], Part.OFFSETS, wanted)))
    assert [(place.group, place.topic, name) for place, name, _ in found] == [
        ("g0000", "t01", str(n)) for n in range(4)
    ]
    assert asked == [("g0000", "t00"), ("g0000", "t01"), ("g0000", "t02"), ("g0001", "")]


def test_two_spellings_of_one_topic_are_adjacent(registry: Registry, raw: Any) -> None:
    plant(raw, [f"/consumers/g/owners/{topic}/0" for topic in ("a", "b'b'", "b", "c")])
    found = tree_walk.nodes(tree_walk.leaves(registry._context, ["g"], Part.OWNERS))
    assert [place.topic for place, _, _ in found] == ["a", "b", "b'b'", "c"]
