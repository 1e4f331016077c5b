"""Throw-away brokers: they start, keep their data, leave nothing behind, and report errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from zkgroups.exceptions import ServerStartError
from zkgroups.input_errors import InvalidOptionError
from zkgroups.testing import KafkaBroker

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(1000)]


def test_a_broker_that_cannot_start_reports_the_reason_and_leaves_nothing_behind(tmp_path: Path) -> None:
    broker = KafkaBroker(config={"num.io.threads": "none"})

    with pytest.raises(ServerStartError, match=r"num\.io\.threads"):
        broker.start()

    with pytest.raises(RuntimeError, match="start the server first"):
        _ = broker.data_dir


@pytest.mark.parametrize(
    ("release", "zookeeper", "words"),
    [
        ("", None, "must be a release of Kafka"),
        ("4.3", None, "must be a release of Kafka"),
        ("../4.3.1", None, "must be a release of Kafka"),
        ("1.1.1", None, "before 3.3 need a ZooKeeper"),
        ("4.3.1", "127.0.0.1:2181", "since 4.0 cannot use a ZooKeeper"),
    ],
)
def test_impossible_options_of_a_broker_are_refused(release: str, zookeeper: str | None, words: str) -> None:
    with pytest.raises(InvalidOptionError, match=words):
        KafkaBroker(release=release, zookeeper=zookeeper)
