"""Lags and log ends are those of Kafka's own tools of release 1.1.1, and of `zkgroups lag`."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest

from zkgroups import Registry, TopicPartition
from zkgroups.kafka import Brokers
from zkgroups.serve.metrics.exposition import Format
from zkgroups.serve.metrics.render import render
from zkgroups.serve.picture.values import Picture
from zkgroups.serve.settings import MetricSettings, SweepSettings
from zkgroups.serve.sweep.sweeper import Sweeper
from zkgroups.testing import KafkaBroker
from zkgroups.testing.java import find_java
from zkgroups.testing.kafka_releases import release_jars

from ..cli.running import run
from .test_sweeps import until

pytestmark = pytest.mark.zookeeper

OPTIONS = ("-XX:TieredStopAtLevel=1", "-Dlog4j.configuration=file:/dev/null")


def kafka_tool(broker: KafkaBroker, main: str, *arguments: str) -> list[list[str]]:
    """Run one of Kafka's own tools, and return the words of each line that it prints."""
    jars = os.pathsep.join(map(str, release_jars(broker.release)))
    command = [str(find_java()), *OPTIONS, "-cp", jars, main, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    return [line.split() for line in done.stdout.splitlines() if line.strip()]


def series(picture: Picture, name: str) -> dict[tuple[str, str, int], int]:
    """Return the values of a metric by group, topic and partition."""
    text = b"".join(render(picture, MetricSettings(), Format.TEXT).parts).decode()
    found = re.findall(
        rf'^{name}{{(?:consumergroup="(.*?)",)?topic="(.*?)",partition="(\d+)"}} (\d+)$', text, re.MULTILINE
    )
    return {(group, topic, int(number)): int(value) for group, topic, number, value in found}


@contextmanager
def member(registry: Registry, group: str, topic: str, offsets: dict[int, int]) -> Iterator[None]:
    """A member that owns all partitions, and has committed. Kafka's tool only shows topics that have owners."""
    with registry.group(group).instance("anna-0") as anna:  # the tool needs a dash in the name
        anna.register([topic])
        claims = anna.claim_many([TopicPartition(topic, number) for number in range(3)])
        claims.commit({TopicPartition(topic, number): offset for number, offset in offsets.items()})
        yield


@pytest.mark.timeout(1000)  # jars may have to be fetched
def test_every_value_equals_that_of_kafkas_tools_and_of_zkgroups_lag(legacy_kafka: KafkaBroker) -> None:
    topic, group = f"served-{uuid4().hex}", f"group-{uuid4().hex}"
    legacy_kafka.create_topic(topic, 3)
    for number, messages in enumerate((10, 4, 0)):
        legacy_kafka.write(topic, number, messages)
    zookeeper, address = legacy_kafka.zookeeper, legacy_kafka.address
    settings = SweepSettings(cluster="old", every=3600)
    with Registry.connect(zookeeper) as registry, member(registry, group, topic, {0: 7, 1: 4}):
        with (
            Brokers.connect(address) as brokers,
            Sweeper(lambda: Registry.connect(zookeeper), brokers, settings) as sweeper,
        ):
            picture = until(sweeper, lambda picture: group in picture.groups)
        tool, told_by = "kafka.admin.ConsumerGroupCommand", ("--zookeeper", zookeeper, "--describe", "--group", group)
        described = kafka_tool(legacy_kafka, tool, *told_by)
        ours = run("-z", zookeeper, "-b", address, "lag", group, "-o", "json").json["lags"]
    lags = by_place(picture, "kafka_consumergroup_lag", group, topic)
    offsets = by_place(picture, "kafka_consumergroup_current_offset", group, topic)
    ends = by_place(picture, "kafka_topic_partition_current_offset", "", topic)
    starts = by_place(picture, "kafka_topic_partition_oldest_offset", "", topic)
    assert (lags, ends) == ({0: 3, 1: 0}, {0: 10, 1: 4, 2: 0})

    told = {int(words[1]): words[2:5] for words in described if words[0] == topic}
    assert {number: (offset, end, lag) for number, (offset, end, lag) in told.items() if offset != "-"} == {
        number: (str(offsets[number]), str(ends[number]), str(lags[number])) for number in lags
    }
    for time, wanted in (("-1", ends), ("-2", starts)):
        arguments = ("--broker-list", address, "--topic", topic, "--time", time)
        printed = kafka_tool(legacy_kafka, "kafka.tools.GetOffsetShell", *arguments)
        assert {int(words[0].split(":")[1]): int(words[0].split(":")[2]) for words in printed} == wanted
    assert {row["partition"]: row["lag"] for row in ours if row["lag"] is not None} == lags
    assert {row["partition"]: row["log_end"] for row in ours} == ends


def by_place(picture: Picture, name: str, group: str, topic: str) -> dict[int, int]:
    return {number: value for (g, t, number), value in series(picture, name).items() if (g, t) == (group, topic)}
