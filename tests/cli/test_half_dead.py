"""One of two brokers is dead: commands show all that the other one and ZooKeeper know, and say what is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from zkgroups import Registry, TopicPartition
from zkgroups.exceptions import MissingDependencyError
from zkgroups.testing import KafkaBroker, ZooKeeperServer, missing

from .running import Ended, run

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka, pytest.mark.timeout(1000)]

ALIVE, ORPHANED, LAST = (TopicPartition("orders", partition) for partition in range(3))
UNKNOWN = f"zkgroups: log ends and lag are unknown: no leader of {ORPHANED} (and 1 more) answered\n"

Zkgroups = Callable[..., Ended]


@pytest.fixture(scope="module")
def zkgroups() -> Iterator[Zkgroups]:
    """Run the command. Partition 0 of `orders` has a leader; those of partitions 1 and 2 was killed."""
    with ExitStack() as stack:
        try:
            zookeeper = stack.enter_context(ZooKeeperServer()).address
            alive = stack.enter_context(KafkaBroker(release="1.1.1", zookeeper=zookeeper))
            dying = KafkaBroker(release="1.1.1", zookeeper=zookeeper, config={"broker.id": "2"})
            stack.enter_context(dying)
        except MissingDependencyError as error:
            missing("kafka", str(error))
        topic = NewTopic("orders", num_partitions=3, replica_assignment=[[1], [2], [2]])
        admin = AdminClient({"bootstrap.servers": alive.address, "log_level": 0})
        admin.create_topics([topic])["orders"].result()
        alive.write("orders", 0, 5)
        with Registry.connect(zookeeper) as registry:
            registry.group("billing").offsets.set_many({ALIVE: 2, ORPHANED: 1, LAST: 0})
        dying.kill()
        where = ("-z", zookeeper, "-b", f"{dying.address},{alive.address}")
        yield lambda *arguments: run(*arguments, *where)


def test_a_description_shows_the_lag_that_is_known(zkgroups: Zkgroups) -> None:
    ended = zkgroups("groups", "describe", "billing", "-o", "json")
    [group] = ended.json["groups"]
    assert [(each["offset"], each["lag"], each["note"]) for each in group["partitions"]] == [
        (2, 3, None),
        (1, None, "log unknown"),
        (0, None, "log unknown"),
    ]
    assert (ended.code, ended.err) == (9, UNKNOWN)


def test_a_list_of_groups_shows_for_how_many_partitions_the_lag_is_unknown(zkgroups: Zkgroups) -> None:
    ended = zkgroups("groups", "list", "-o", "wide")
    assert ended.lines[0].split()[-3:] == ["TOTAL-LAG", "MAX-LAG", "UNKNOWN-LAGS"]
    assert ended.lines[1].split()[-3:] == ["3", "3", "2"]
    assert (ended.code, ended.err) == (9, UNKNOWN)


def test_lag_shows_the_lag_that_is_known(zkgroups: Zkgroups) -> None:
    ended = zkgroups("lag", "-o", "json")
    assert [each["lag"] for each in ended.json["lags"]] == [3, None, None]
    assert (ended.code, ended.err) == (9, UNKNOWN)
    assert zkgroups("lag", "--topic", "orders:0").code == 0


def test_the_doctor_says_which_offsets_it_could_not_compare(zkgroups: Zkgroups) -> None:
    ended = zkgroups("doctor")
    text = f"zkgroups: offsets were not compared with the logs: no leader of {ORPHANED} (and 1 more) answered"
    assert (ended.code, ended.err.splitlines()) == (9, [text, "Findings: 1 (info: 1)."])


def test_an_offset_is_set_with_a_warning_that_it_was_not_checked(zkgroups: Zkgroups) -> None:
    ended = zkgroups("offsets", "set", "billing", "orders", "2", "7")
    assert ended.code == 0
    assert ended.err.splitlines() == [
        f"warning: the log of {LAST} was not checked: no leader of {LAST} answered",
        f"billing: set the offset of {LAST} to 7; it was 0",
    ]


def test_a_reset_changes_only_offsets_whose_log_is_known(zkgroups: Zkgroups) -> None:
    ended = zkgroups("offsets", "reset", "billing", "--all-topics", "--to-latest")
    assert [line.split()[1:5] for line in ended.lines[1:]] == [
        ["orders", "0", "2", "5"],
        ["orders", "1", "1", "-"],
        ["orders", "2", "7", "-"],
    ]
    assert (ended.code, ended.err.splitlines()[0]) == (
        9,
        f"zkgroups: log ends are unknown: no leader of {ORPHANED} (and 1 more) answered",
    )
