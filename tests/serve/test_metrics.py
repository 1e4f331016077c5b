"""Metrics: both formats are valid, unknown values have no series, and a limit is reported."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from zkgroups.core.kafka_values import OffsetRange
from zkgroups.core.znodes.own_nodes import MarkState
from zkgroups.core.znodes.topic_partition import TopicPartition
from zkgroups.serve.metrics import own
from zkgroups.serve.metrics.exposition import Format
from zkgroups.serve.metrics.render import render
from zkgroups.serve.picture.values import Picture
from zkgroups.serve.settings import Granularity, MetricNames, MetricSettings
from zkgroups.serve.sweeper import BrokerReader, ReadGroup
from zkgroups.testing import missing

from .pictures import HOSTILE, NOW, Sweeps, at, log, mixed, moved, view

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
UNPACKED = ROOT / ".venv" / "prometheus" / "usr" / "bin"
"""Where `scripts/setup web` has put promtool."""

Samples = dict[str, dict[frozenset[tuple[str, str]], float]]


def text(picture: Picture, format: Format = Format.TEXT, **settings: object) -> str:
    chosen = MetricSettings(**settings)  # type: ignore[arg-type]
    return b"".join(render(picture, chosen, format).parts).decode() + own.of_scrape(
        picture.zookeeper.read_ms, format, NOW + 2000
    )


def families(picture: Picture, format: Format = Format.TEXT, **settings: object) -> Iterator[Metric]:
    parse = parse_openmetrics if format is Format.OPENMETRICS else parse_text
    found: Iterator[Metric] = parse(text(picture, format, **settings))
    return found


def samples(picture: Picture, format: Format = Format.TEXT, **settings: object) -> Samples:
    found: Samples = {}
    for family in families(picture, format, **settings):
        for sample in family.samples:
            assert frozenset(sample.labels.items()) not in found.get(sample.name, {}), f"twice: {sample}"
            found.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return found


def of_group(found: Samples, name: str, group: str, **labels: str) -> float | None:
    return found.get(name, {}).get(frozenset({"consumergroup": group, **labels}.items()))


def test_both_formats_say_the_same_and_every_name_survives_them() -> None:
    for names, granularity in product(MetricNames, Granularity):
        settings = {"names": names, "granularity": granularity}
        found = samples(mixed(), Format.TEXT, **settings)
        assert found == samples(mixed(), Format.OPENMETRICS, **settings)
        groups = {dict(labels)["consumergroup"] for labels in found["zkgroups_group_severity"]}
        assert {name.replace("/", "|") for name in HOSTILE} < groups


def test_a_group_has_the_values_of_the_znodes_and_the_logs() -> None:
    found = samples(mixed())
    place = {"topic": "orders", "partition": "0"}
    assert of_group(found, "kafka_consumergroup_current_offset", "billing", **place) == 90
    assert of_group(found, "kafka_consumergroup_lag", "billing", **place) == 10
    assert of_group(found, "kafka_consumergroup_lag_sum", "billing", topic="orders") == 15
    assert of_group(found, "kafka_consumergroup_current_offset_sum", "billing", topic="orders") == 285
    assert of_group(found, "kafka_consumergroup_members", "billing") == 2
    assert of_group(found, "zkgroups_commits_total", "billing", **place) == 1000
    assert of_group(found, "zkgroups_last_commit_timestamp_seconds", "billing", **place) == NOW / 1000 - 5
    assert of_group(found, "zkgroups_group_status", "stopped", status="STOP") == 1
    assert of_group(found, "zkgroups_group_severity", "stopped") == 3
    assert of_group(found, "zkgroups_group_unowned_partitions", "half") == 2
    assert found["kafka_topic_partition_current_offset"][frozenset(place.items())] == 100
    assert found["kafka_topic_partitions"][frozenset({("topic", "orders")})] == 3
    assert found["zkgroups_picture_age_seconds"][frozenset()] == 2


def test_unknown_values_have_no_series_but_are_counted() -> None:
    found = samples(mixed())
    place = {"topic": "orders", "partition": "0"}
    for group in ("ahead", "bad"):
        assert of_group(found, "kafka_consumergroup_lag", group, **place) is None
        assert of_group(found, "kafka_consumergroup_lag_sum", group, topic="orders") is None
        assert of_group(found, "zkgroups_group_lag", group) is None
        assert of_group(found, "zkgroups_group_unknown_lags", group) == 1
    assert all(value >= 0 for series in found.values() for value in series.values())
    assert not re.search(r"\b(NaN|None|Inf|-1)$", text(mixed()), re.MULTILINE)


def test_without_brokers_there_are_offsets_but_no_lag() -> None:
    found = samples(Sweeps(brokers=False).sweep(view("billing", {at(0): 5})))
    assert of_group(found, "kafka_consumergroup_current_offset", "billing", topic="orders", partition="0") == 5
    assert not found.keys() & {"kafka_consumergroup_lag", "kafka_topic_partitions", "zkgroups_group_lag"}


def test_a_moved_group_leaves_the_compatible_series_and_one_that_is_being_moved_keeps_them() -> None:
    found = samples(mixed())
    compatible = [name for name in found if name.startswith("kafka_")]
    assert not any(("consumergroup", "gone") in labels for name in compatible for labels in found[name])
    assert of_group(found, "zkgroups_group_migration", "gone", state="moved") == 1
    assert of_group(found, "zkgroups_group_status", "gone", status="MOVED") == 1
    moving = samples(Sweeps().sweep(moved(view("billing", {at(0): 5}), MarkState.MOVING), ends=log(10)))
    assert of_group(moving, "kafka_consumergroup_lag_sum", "billing", topic="orders") == 5


def test_the_names_of_kafka_lag_exporter_replace_those_of_kafka_exporter() -> None:
    found = samples(mixed(), names=MetricNames.LAG_EXPORTER)
    assert not any(name.startswith(("kafka_consumergroup_lag", "kafka_exporter", "kafka_topic")) for name in found)
    labels = {
        "cluster_name": "prod",
        "group": "billing",
        "topic": "orders",
        "partition": "0",
        "member_host": "",
        "consumer_id": "anna",
        "client_id": "",
    }
    assert found["kafka_consumergroup_group_lag"][frozenset(labels.items())] == 10
    group = frozenset({"cluster_name": "prod", "group": "billing"}.items())
    assert found["kafka_consumergroup_group_max_lag"][group] == 10
    assert found["kafka_consumergroup_group_sum_lag"][group] == 15


def test_a_coarser_granularity_leaves_out_the_finer_series() -> None:
    by_topic, by_group = (samples(mixed(), granularity=level) for level in (Granularity.TOPIC, Granularity.GROUP))
    finest = {"kafka_consumergroup_lag", "kafka_topic_partition_current_offset", "zkgroups_commits_total"}
    assert not finest & by_topic.keys()
    assert "kafka_consumergroup_lag_sum" in by_topic
    assert "kafka_consumergroup_lag_sum" not in by_group
    assert "zkgroups_group_lag" in by_group


def test_above_the_limit_coarser_series_are_handed_out_and_the_rest_is_counted() -> None:
    everything = render(mixed(), MetricSettings(), Format.TEXT)
    assert everything.left_out == 0
    for most in (400, 250, 120, 1):
        limited = render(mixed(), MetricSettings(most_series=most), Format.TEXT)
        assert limited.series <= most
        assert limited.left_out == everything.series - limited.series > 0
        found = samples(mixed(), most_series=most)
        assert found["zkgroups_series_left_out"][frozenset()] == limited.left_out
        assert sum(map(len, found.values())) <= most + 40, "the series of the server itself are few"


def test_commits_are_a_counter_and_churn_is_counted() -> None:
    sweeps = Sweeps()
    sweeps.sweep(view("billing", {at(0): 5}, members={"anna": [0]}), ends=log(10))
    picture = sweeps.sweep(view("billing", {at(0): 6}, members={"ben": [0, 1]}), ends=log(10), now=NOW + 15_000)
    found = samples(picture)
    assert of_group(found, "zkgroups_group_members_joined_total", "billing") == 1
    assert of_group(found, "zkgroups_group_members_left_total", "billing") == 1
    assert of_group(found, "zkgroups_group_owner_changes_total", "billing") == 2
    types = {family.name: family.type for family in families(picture, Format.OPENMETRICS)}
    assert types["zkgroups_commits"] == types["zkgroups_group_members_joined"] == "counter"


def promtool(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    found = shutil.which("promtool") or shutil.which("promtool", path=UNPACKED)
    if found is None:
        missing("web", "promtool is not installed: run `scripts/setup web`, or install it with apt")
    return subprocess.run([found, *arguments], input=stdin, capture_output=True, text=True, cwd=DEPLOY / "prometheus")


@pytest.mark.parametrize("names", MetricNames)
def test_promtool_accepts_the_metrics(names: MetricNames) -> None:
    """It also lints names. Those of other exporters are as they are."""
    checked = promtool("check", "metrics", stdin=text(mixed(), names=names))
    assert not [line for line in (checked.stdout + checked.stderr).splitlines() if not line.startswith("kafka_")]


def test_the_alert_rules_and_the_configuration_are_valid_and_pass_their_tests() -> None:
    for arguments in (("check", "config", "prometheus.yml"), ("test", "rules", "alerts_test.yml")):
        checked = promtool(*arguments)
        assert checked.returncode == 0, checked.stdout + checked.stderr


def known_names() -> set[str]:
    sweeps = Sweeps()
    sweeps.sweep(view("billing", {at(0): 5}, members={"anna": [0]}), ends=log(10))
    both = [mixed(), sweeps.sweep(view("billing", {at(0): 6}, members={"ben": [0]}), ends=log(10), now=NOW + 15_000)]
    headers = "".join(text(picture) for picture in both)
    return set(re.findall(r"^# TYPE (\S+)", headers, re.MULTILINE))


@pytest.mark.parametrize("file", ["prometheus/alerts.yml", "grafana/zkgroups.json"])
def test_every_metric_of_the_alerts_and_the_dashboard_exists(file: str) -> None:
    used = set(re.findall(r"\b(?:zkgroups|kafka)_\w+", (DEPLOY / file).read_text()))
    assert used
    assert used <= known_names()


def test_the_dashboard_has_no_panel_on_top_of_another() -> None:
    board = json.loads((DEPLOY / "grafana" / "zkgroups.json").read_text())
    taken: dict[tuple[int, int], str] = {}
    for panel in board["panels"]:
        place: Mapping[str, int] = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]
    assert max(x for x, _ in taken) < 24


class TwoTopics:
    """Brokers with the topic orders, which a group reads, and the topic quiet, which none reads."""

    def partitions(self, topics: Iterable[str] | None) -> dict[str, tuple[int, ...]]:
        return {name: (0, 1, 2) for name in ("orders", "quiet") if topics is None or name in topics}

    def ranges(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetRange | None]:
        return dict.fromkeys(partitions, OffsetRange(4, 9))

    def message_times(self, _offsets: object, **_: int) -> dict[TopicPartition, int | None]:
        return {}


@pytest.mark.parametrize("all_topics", [True, False])
def test_topics_without_groups_have_the_series_that_kafka_exporter_has(all_topics: bool) -> None:
    sweeps = Sweeps()
    billing = view("billing", {at(0): 5, at(1): 5, at(2): 5}, members={"anna": [0, 1, 2]})
    reader = BrokerReader(TwoTopics(), sweeps.state.ends, all_topics=all_topics)  # type: ignore[arg-type]
    reader.read([ReadGroup.of(billing).description], is_complete=True, clock=lambda: NOW)
    found = samples(sweeps.sweep(billing))
    quiet = frozenset({("topic", "quiet"), ("partition", "2")})
    assert found["kafka_topic_partition_current_offset"].get(quiet) == (9 if all_topics else None)
    assert found["kafka_topic_partition_oldest_offset"].get(quiet) == (4 if all_topics else None)
    assert found["kafka_topic_partitions"].get(frozenset({("topic", "quiet")})) == (3 if all_topics else None)
    assert sweeps.state.ends.history(at(2, "quiet")) is None, "memory is for the topics of groups"
    reader.read([ReadGroup.of(billing).description], is_complete=False, clock=lambda: NOW)
    assert (at(2, "quiet") in sweeps.state.ends.ranges) == all_topics
