"""Whatever a group consists of: every operation ends with a value or a typed error, and changes nothing outside it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import pytest
from kazoo.exceptions import BadArgumentsError, KazooException
from kazoo.security import OPEN_ACL_UNSAFE

from zkgroups import CommittedOffset, Consumergroup, Owner, Registry, TopicPartition, Watched
from zkgroups.exceptions import ZkgroupsException

from ..seeds import FUZZ_SECONDS, seed
from ..test_decoders import DECODERS
from ..zookeeper.tree import dump_all
from .damage import NASTY, damaged

pytestmark = pytest.mark.zookeeper

ROUNDS = 8
LONGEST = 30.0
"""In seconds, for one operation."""

VICTIM: Final = "victim"
SAMPLES: Final = {
    name: (DECODERS[name].sample,) for name in ("registration", "owner", "offset", "mark", "topic", "broker", "plan")
} | {"details": (DECODERS["details of a commit"].sample,)}
NAMES = ("a", "b", "orders", "0", "1", "7", "-1", "00", "ä", "a-0", "a b", "9" * 400, "%2F", "b'orders'1001-3", "ids")
AT = TopicPartition("orders", 0)


class Attacker:
    """A client that creates nodes with damaged names and data in one group, and damaged topics and brokers."""

    def __init__(self, chance: random.Random, client: Any) -> None:
        self._chance = chance
        self._client = client

    def attack(self, group: str) -> None:
        chance = self._chance
        root = f"/consumers/{group}"
        for _ in range(chance.randrange(4)):
            self._create(f"{root}/ids/{self._name()}", "registration", ephemeral=True)
        for _ in range(chance.randrange(4)):
            self._create(f"{root}/owners/{self._name()}/{self._name()}", "owner", ephemeral=True)
        for _ in range(chance.randrange(6)):
            self._create(f"{root}/offsets/{self._name()}/{self._name()}", "offset")
        for part, kind in (("migration", "mark"), ("details/orders/0", "details"), ("plan", "plan")):
            if chance.random() < 0.3:
                self._create(f"{root}/{part}", kind)
        for path in ("ids/a/b", "owners/orders/0/x", "offsets/orders/0/x", "offsets/0", self._name()):
            if chance.random() < 0.2:
                self._create(f"{root}/{path}", "offset")
        self._create(f"/brokers/topics/{self._name()}", "topic")
        self._create(f"/brokers/ids/{self._name()}", "broker")

    def _name(self) -> str:
        name = self._chance.choice(NAMES)
        if self._chance.random() < 0.3:
            name += self._chance.choice(NASTY).decode(errors="replace")[:300]
        return name.replace("/", "") or "x"

    def _create(self, path: str, kind: str, *, ephemeral: bool = False) -> None:
        """Create the node unless the server refuses its name."""
        chance = self._chance
        data = chance.choice(SAMPLES[kind]) if chance.random() < 0.3 else damaged(chance, SAMPLES[kind])
        with suppress(KazooException, BadArgumentsError, UnicodeError, ValueError):
            self._client.create(path, data[:100_000], OPEN_ACL_UNSAFE, ephemeral=ephemeral, makepath=True)


def _registered(group: Consumergroup) -> None:
    with group.instance("us") as me:
        me.register(["orders", "a"])
        for at in (AT, TopicPartition("a", 1)):
            with me.claim(at) as claim:
                claim.commit(3)
        me.update(["b"])


def _watched(group: Consumergroup) -> None:
    for what in Watched:
        with group.watch(what) as watch:
            watch.next(timeout=LONGEST)


def _released(group: Consumergroup) -> None:
    for owner in group.owners():
        if isinstance(owner, Owner):
            group.release(owner.at, expected_owner=owner.id)


def _pruned(group: Consumergroup) -> None:
    group.prune([each for each in group.offsets if isinstance(each, CommittedOffset)])


def _repaired(group: Consumergroup, registry: Registry) -> None:
    for checkup in registry.check([group.name]):
        for finding in checkup.findings:
            if finding.repair is not None:
                registry.repair(finding)


ACTS: dict[str, Callable[[Consumergroup, Registry], object]] = {
    "groups": lambda _, registry: registry.groups(),
    "describe all": lambda _, registry: [*registry.describe()],
    "offsets of all": lambda _, registry: [*registry.offsets()],
    "created": lambda _, registry: registry.created_at(registry.groups()),
    "check": lambda _, registry: [*registry.check()],
    "topics": lambda _, registry: [registry.topic(name) for name in registry.topics()],
    "brokers": lambda _, registry: registry.brokers(),
    "describe": lambda group, _: group.describe(),
    "instances": lambda group, _: [*group.instances(), *group.living()],
    "registrations": lambda group, _: [group.registration(each.id) for each in group.instances()],
    "owners": lambda group, _: [*group.owners()],
    "offsets": lambda group, _: [*group.offsets],
    "fetch": lambda group, _: group.offsets.fetch_many([AT, TopicPartition("a", 1), TopicPartition("ä", 7)]),
    "watch": lambda group, _: _watched(group),
    "register": lambda group, _: _registered(group),
    "set": lambda group, _: group.offsets.set_many({AT: 5, TopicPartition("ä", 7): 6}),
    "reset": lambda group, _: group.offsets.reset({AT: 1}, force=True),
    "delete offsets": lambda group, _: group.offsets.delete([AT], force=True),
    "release": lambda group, _: _released(group),
    "repair": _repaired,
    "copy": lambda group, registry: (group.copy(f"{VICTIM}-copy"), registry.group(f"{VICTIM}-copy").delete()),
    "prune": lambda group, _: _pruned(group),
    "delete": lambda group, _: group.delete(),
}
"""Operations on a group, in this order. The last ones delete nodes."""


@pytest.fixture
def client(raw: Any, registry: Registry) -> Any:
    """A plain client, after it has created a healthy group and nodes of other programs."""
    raw.create("/brokers/topics/orders", b'{"version":1,"partitions":{"0":[0],"1":[0]}}', makepath=True)
    raw.create("/brokers/ids/0", DECODERS["broker"].sample, makepath=True)
    for path in ("/consumers/victims/offsets/orders/0", "/consumers/victim2/ids", "/other/victim/offsets", "/victim"):
        raw.create(path, b"7", makepath=True)
    group = registry.group("healthy")
    healthy = group.instance("anna")
    healthy.register(["orders"])
    healthy.claim(AT).commit(100)
    yield raw
    assert AT in healthy.claims
    healthy.deregister()


def outside(client: Any) -> Any:
    """Every node that does not belong to the attacked group."""
    inside = (f"/consumers/{VICTIM}", f"/consumers/{VICTIM}-copy")
    return {
        path: node
        for path, node in dump_all(client).items()
        if path not in inside and not path.startswith(tuple(f"{each}/" for each in inside))
    }


def attack_once(number: int, registry: Registry, client: Any) -> None:
    chance = random.Random(f"{seed()} nodes {number}")
    Attacker(chance, client).attack(VICTIM)
    before, healthy = outside(client), registry.group("healthy").describe()
    group = registry.group(VICTIM)
    for name, act in ACTS.items():
        begun = time.monotonic()
        try:
            act(group, registry)
        except ZkgroupsException:
            pass
        except Exception as error:
            raise AssertionError(f"{name}, round {number}: {error!r}") from error
        assert time.monotonic() - begun < LONGEST, f"{name}, round {number}"
        after = outside(client)
        assert after == before, f"{name}, round {number}, changed nodes outside the group"
    assert registry.group("healthy").describe().partitions == healthy.partitions
    client.delete(f"/consumers/{VICTIM}", recursive=True)
    for path in set(before) - {"/brokers/topics/orders", "/brokers/ids/0"}:
        if path.startswith(("/brokers/topics/", "/brokers/ids/")):
            client.delete(path, recursive=True)


def test_operations_on_a_damaged_group_end_and_change_nothing_outside_of_it(registry: Registry, client: Any) -> None:
    for number in range(ROUNDS):
        attack_once(number, registry, client)


@pytest.mark.soak
@pytest.mark.timeout(FUZZ_SECONDS + 600)
def test_operations_on_damaged_groups_for_long(registry: Registry, client: Any) -> None:
    deadline, number = time.monotonic() + FUZZ_SECONDS, 0
    while time.monotonic() < deadline:
        attack_once(number, registry, client)
        number += 1
    print(f"\n{number} damaged groups, {len(ACTS)} operations each, {FUZZ_SECONDS:g} s, ZKGROUPS_SEED={seed()}")
