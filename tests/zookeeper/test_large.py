"""Failure 15: very large groups, very many groups, and lists of names of almost a megabyte."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.lasting import lasting_client
from zkgroups import CommittedOffset, Consumergroup, MalformedNode, Registry, TopicPartition
from zkgroups.exceptions import ClaimedByOtherError, GroupInUseError, InterruptedDeleteError
from zkgroups.testing import Op, TcpProxy, fresh_chroot
from zkgroups.zookeeper.requests.request_limit import MAX_REQUEST_BYTES

# On one worker, because the seeded tree is large.
pytestmark = [
    pytest.mark.zookeeper,
    pytest.mark.xdist_group("large"),
    pytest.mark.timeout(60, func_only=True),  # no call takes longer than a minute
]

TOPICS, PARTITIONS = 50, 1_000
GROUPS = 5_000


def seed(client: Any, paths: Sequence[str], data: bytes = b"7") -> None:
    """Create nodes quickly: many in each transaction, and many transactions in flight."""
    answers = []
    for start in range(0, len(paths), 2_000):
        transaction = client.transaction()
        for path in paths[start : start + 2_000]:
            transaction.create(path, data)
        answers.append(transaction.commit_async())
    for answer in answers:
        assert all(isinstance(made, str) for made in answer.get(timeout=60))


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


def test_failure_15_five_thousand_claims_are_all_or_none(registry: Registry, raw: Any, owners: str) -> None:
    raw.create(f"{owners}/{HELD[-1]}", b"other", ephemeral=True)
    me = registry.group("billing").instance("me")
    me.register(["orders"])
    with pytest.raises(ClaimedByOtherError) as caught:
        me.claim_many(HELD)
    assert caught.value.at == HELD[-1]
    assert left(raw, owners) == [str(HELD[-1])]
    assert me.claims == {}


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


def test_failure_15_a_group_of_fifty_thousand_offsets_is_deleted(proxied: Registry, proxy: TcpProxy, raw: Any) -> None:
    seed_offsets(raw, "billing", TOPICS, PARTITIONS)
    before = proxy.requests_by_type[Op.MULTI]
    proxied.group("billing").delete()
    assert not raw.exists("/consumers/billing")
    assert proxy.requests_by_type[Op.MULTI] - before <= TOPICS + 5


def test_failure_15_a_registration_stops_the_deletion_of_a_large_group_and_no_topic_is_half_deleted(
    proxied: Registry, proxy: TcpProxy, raw: Any
) -> None:
    topics = 12
    seed_offsets(raw, "billing", topics, PARTITIONS)
    raw.ensure_path("/consumers/billing/ids")

    def register(_event: Any) -> None:
        """The first topic has been deleted."""
        raw.create_async("/consumers/billing/ids/late", b"{}", ephemeral=True)

    raw.get_children("/consumers/billing/offsets", watch=register)
    proxy.delay(0.05)
    group: Consumergroup = proxied.group("billing")
    with pytest.raises(InterruptedDeleteError, match="in use by") as caught:
        group.delete()
    assert isinstance(caught.value.__cause__, GroupInUseError)
    assert 0 < len(caught.value.left) < topics
    assert sorted(raw.get_children("/consumers/billing/offsets")) == list(caught.value.left)
    assert len(left(raw, "/consumers/billing/offsets")) == len(caught.value.left) * PARTITIONS
