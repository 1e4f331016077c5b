"""Logins by SASL/PLAIN, and topics and groups that a user may not see."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import pytest

from zkgroups.core.kafka_values import OffsetRange
from zkgroups.core.migration.offset_decision import NoLog
from zkgroups.core.znodes.topic_partition import TopicPartition
from zkgroups.exceptions import AuthenticationError, NoPermissionError, NotConnectedError, UnknownPartitionError
from zkgroups.kafka import Brokers, read_properties
from zkgroups.migration.current_state import LogRanges
from zkgroups.testing import KafkaBroker

from .conftest import PASSWORD

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(1000)]

AT = TopicPartition("orders", 0)


def _login(folder: Path, user: str, password: str = PASSWORD) -> Mapping[str, str]:
    return read_properties(properties_of(folder, user, password))


def properties_of(folder: Path, user: str, password: str = PASSWORD) -> Path:
    """Write a file, like users have it. Characters that Java treats as escapes are escaped twice."""
    quoted = password.replace("\\", "\\\\").replace('"', '\\"')
    jaas = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="{user}" password="{quoted}";'
    escaped = jaas.replace("\\", "\\\\").replace(" required ", " required \\\n    ")
    path = folder / "client.properties"
    path.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={escaped}\n")
    return path


def test_a_wrong_password_is_an_error_at_once_that_does_not_show_it(
    own: KafkaBroker, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    properties = _login(tmp_path, "anna", "a wrong s3cret")
    with (
        Brokers.connect(own.sasl_address, properties=properties, timeout=60) as brokers,
        pytest.raises(AuthenticationError, match=r"Authentication failed") as caught,
    ):
        brokers.committed(["billing"])

    assert "s3cret" not in f"{caught.value!r} {caught.value.__cause__!r} {caplog.text}"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("user", "log"), [("ben", NoLog.UNKNOWN), ("anna", OffsetRange(0, 0))])
def test_a_forbidden_topic_is_not_taken_for_a_missing_one(
    own: KafkaBroker, tmp_path: Path, user: str, log: NoLog | OffsetRange
) -> None:
    with Brokers.connect(own.sasl_address, properties=_login(tmp_path, user)) as brokers:
        assert brokers.hidden_topics([AT.topic, "no topic"]) == ({AT.topic} if user == "ben" else set())
        logs = LogRanges(brokers, {})
        logs.read([AT])
        assert logs.log(AT, None) == log


def test_reading_a_forbidden_group_is_an_error(own: KafkaBroker, tmp_path: Path) -> None:
    with (
        Brokers.connect(own.sasl_address, properties=_login(tmp_path, "ben")) as brokers,
        pytest.raises(NoPermissionError, match=r"no permission on group 'billing': .* --command-config"),
    ):
        brokers.committed(["billing"])


def test_writing_forbidden_groups_is_an_error_for_each(own: KafkaBroker, tmp_path: Path) -> None:
    with Brokers.connect(own.sasl_address, properties=_login(tmp_path, "ben")) as brokers:
        for found in (
            brokers.groups(["billing", "other"]),
            brokers.committed_or_error(["billing", "other"]),
            brokers.delete_groups(["billing", "other"]),
        ):
            assert [type(each) for each in found.values()] == [NoPermissionError] * 2
        assert brokers.offsets_retention() is None
        # An invisible topic is unknown.
        assert [type(each) for each in brokers.commit({"billing": {AT: 1}})["billing"].values()] == [
            UnknownPartitionError
        ]


def test_without_a_login_the_broker_does_not_answer(own: KafkaBroker) -> None:
    with Brokers.connect(own.sasl_address, timeout=1) as brokers, pytest.raises(NotConnectedError):
        brokers.partitions()


def test_reading_does_not_create_topics_on_a_broker_that_would(own: KafkaBroker) -> None:
    with Brokers.connect(own.address) as brokers:
        unknown = TopicPartition("never-made", 0)
        brokers.partitions(["never-made"])
        brokers.ranges([unknown])
        brokers.offsets_at({unknown: 0})

        assert "never-made" not in brokers.partitions()
