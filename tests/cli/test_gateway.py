"""`zkgroups gateway`: a gateway in the foreground."""

from __future__ import annotations

import signal
from collections.abc import Sequence

import pytest
from confluent_kafka.admin import AdminClient

from tests.gateway.running import reserved
from tests.gateway.test_librdkafka import commit, member
from tests.testing.waiting import eventually
from zkgroups import CommittedOffset, Registry, TopicPartition
from zkgroups.testing import KafkaBroker, ports

from .running import TIMEOUT, run, started

USAGE, UNAVAILABLE, TERMINATED = 2, 7, 143


def test_the_command_serves_clients_until_it_is_terminated(kafka_broker: KafkaBroker) -> None:
    with reserved(2) as (port, broker_port):
        listen = ("--listen", f"{ports.HOST}:{port}", "--broker-ports", f"{broker_port}-{broker_port}")
        with started("gateway", *listen, "-b", kafka_broker.address, "--memory") as process:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address == f"{ports.HOST}:{port}"
            admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
            brokers = admin.list_topics(timeout=TIMEOUT).brokers.values()
            assert [(each.host, each.port) for each in brokers] == [(ports.HOST, broker_port)]
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, out) == (TERMINATED, "")
    assert err.splitlines()[:3] == [
        "The gateway is running. Ctrl-C stops it.",
        "It serves all groups in memory.",
        f"Clients reach the brokers at its ports {broker_port}-{broker_port}.",
    ]


def test_members_in_zookeeper_leave_with_the_gateway_and_their_offsets_stay(legacy_kafka: KafkaBroker) -> None:
    topic = group = "gateway-at-the-shell"
    legacy_kafka.create_topic(topic, 2)
    legacy_kafka.write(topic, 1, 3)
    with reserved(2) as (port, broker_port), Registry.connect(legacy_kafka.zookeeper) as registry:
        listen = ("--listen", f"{ports.HOST}:{port}", "--broker-ports", f"{broker_port}-{broker_port}")
        where = ("-b", legacy_kafka.address, "-z", legacy_kafka.zookeeper, "--group", "gateway-.*")
        with started("gateway", *listen, *where) as process:
            assert process.stdout is not None
            process.stdout.readline()
            with member(f"{ports.HOST}:{port}", group, topic) as found:
                assert eventually(lambda: found.poll() or len(found.read) == 3)
                found.consumer.commit(asynchronous=False)
                assert len(list(registry.group(group).instances())) == 1
                assert len(list(registry.group(group).owners())) == 2
                process.send_signal(signal.SIGTERM)
                process.communicate(timeout=TIMEOUT)
                assert process.returncode == TERMINATED
                assert [*registry.group(group).instances(), *registry.group(group).owners()] == []
        offset = registry.group(group).offsets.fetch(TopicPartition(topic, 1))
        assert isinstance(offset, CommittedOffset)
        assert offset.offset == 3


@pytest.mark.parametrize("quiet", [(), ("--quiet",)])
def test_a_read_only_gateway_logs_each_kind_of_refused_request_once(
    legacy_kafka: KafkaBroker, quiet: Sequence[str]
) -> None:
    legacy_kafka.create_topic(f"gateway-refusals{len(quiet)}")
    with reserved(2) as (port, broker_port):
        address = f"{ports.HOST}:{port}"
        listen = ("--listen", address, "--broker-ports", f"{broker_port}-{broker_port}", "--group", "billing")
        where = ("-b", legacy_kafka.address, "-z", legacy_kafka.zookeeper, "--read-only", *quiet)
        with started("gateway", *listen, *where) as process:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == address
            for _ in range(2):
                with pytest.raises(AssertionError):
                    commit(address, "billing", f"gateway-refusals{len(quiet)}", 5)
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=TIMEOUT)
    [said, *_] = refused = [line for line in err.splitlines() if "refused" in line]
    assert len(refused) == 1
    assert "OffsetCommit of client 'rdkafka' at /127.0.0.1 for 'billing'" in said
    served = f"It serves the groups that match 'billing' in ZooKeeper at {legacy_kafka.zookeeper}, read-only."
    assert (served in err) != bool(quiet)


LISTEN = ("gateway", "--listen", "127.0.0.1:19092")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((*LISTEN, "--memory"), "needs the Kafka brokers"),
        ((*LISTEN, "-b", "k:1"), "choose where to keep groups"),
        (("gateway", "--listen", "a:1,b:2", "-b", "k:1", "--memory"), "one address"),
        (("gateway", "--listen", "19092", "-b", "k:1", "--memory"), "--listen: '19092' is not one address"),
        ((*LISTEN, "-b", "k:1", "--memory", "--broker-ports", "5"), "19100-19199"),
        ((*LISTEN, "-b", "k:1", "--memory", "--broker-ports", "19000-19199"), "must not contain"),
        ((*LISTEN, "-b", "k:1", "--memory", "--group", "("), "group"),
        ((*LISTEN, "-b", "k:1", "--memory", "--listen-key", "setup.cfg"), "--listen-cert"),
        ((*LISTEN, "-b", "k:1", "--memory", "--listen-cert", "setup.cfg"), "cannot be read"),
    ],
)
def test_a_command_line_that_cannot_work_is_refused(arguments: Sequence[str], said: str) -> None:
    done = run(*arguments)
    assert (done.code, done.out) == (USAGE, "")
    assert said in done.err


def test_brokers_that_cannot_be_reached_are_reported() -> None:
    port = ports.reserve()
    try:
        done = run(*LISTEN, "-b", f"{ports.HOST}:{port.number}", "--memory")
    finally:
        port.release()
    assert (done.code, done.out) == (UNAVAILABLE, "")
    assert "no broker answered" in done.err
