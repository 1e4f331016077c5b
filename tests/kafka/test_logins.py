"""Who may read what: logins by SASL/PLAIN, and what a broker keeps to itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from zkgroups.core.kafka_values import OffsetRange
from zkgroups.core.znodes.topic_partition import TopicPartition
from zkgroups.exceptions import AuthenticationError, NoPermissionError, NotConnectedError, UnknownPartitionError
from zkgroups.kafka import Brokers, read_properties
from zkgroups.testing import KafkaBroker

from .conftest import PASSWORD

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(1000)]

AT = TopicPartition("orders", 0)


def _login(folder: Path, user: str, password: str = PASSWORD) -> Mapping[str, str]:
    """By way of a file, as everybody has it: what Java takes for an escape is escaped twice."""
    quoted = password.replace("\\", "\\\\").replace('"', '\\"')
    jaas = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="{user}" password="{quoted}";'
    escaped = jaas.replace("\\", "\\\\").replace(" required ", " required \\\n    ")
    path = folder / "client.properties"
    path.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={escaped}\n")
    return read_properties(path)


def test_who_logs_in_reads_everything(own: KafkaBroker, tmp_path: Path) -> None:
    with Brokers.connect(own.sasl_address, properties=_login(tmp_path, "anna")) as brokers:
        assert brokers.partitions(["orders"]) == {"orders": (0,)}
        assert brokers.ranges([AT]) == {AT: OffsetRange(0, 0)}
        assert brokers.committed(["billing"])["billing"][AT].offset == 7
        assert brokers.commit({"billing": {AT: 7}}) == {"billing": {AT: None}}
        assert not isinstance(brokers.groups(["billing"])["billing"], Exception)


def test_a_wrong_password_is_said_at_once_and_not_shown(
    own: KafkaBroker, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    properties = _login(tmp_path, "anna", "a wrong s3cret")
    with (
        Brokers.connect(own.sasl_address, properties=properties, timeout=60) as brokers,
        pytest.raises(AuthenticationError, match=r"Authentication failed") as caught,
    ):
        brokers.committed(["billing"])

    assert "s3cret" not in f"{caught.value!r} {caught.value.__cause__!r}"
    assert capfd.readouterr() == ("", "")


def test_who_may_not_see_a_topic_does_not_know_it(own: KafkaBroker, tmp_path: Path) -> None:
    with Brokers.connect(own.sasl_address, properties=_login(tmp_path, "ben")) as brokers:
        assert brokers.partitions() == {}
        assert brokers.ranges([AT]) == {AT: None}


def test_who_may_not_read_a_group_is_told_so(own: KafkaBroker, tmp_path: Path) -> None:
    with (
        Brokers.connect(own.sasl_address, properties=_login(tmp_path, "ben")) as brokers,
        pytest.raises(NoPermissionError, match="no permission on group 'billing'"),
    ):
        brokers.committed(["billing"])


def test_who_may_not_touch_a_group_is_told_so_for_each(own: KafkaBroker, tmp_path: Path) -> None:
    with Brokers.connect(own.sasl_address, properties=_login(tmp_path, "ben")) as brokers:
        for found in (
            brokers.groups(["billing", "other"]),
            brokers.committed_or_error(["billing", "other"]),
            brokers.delete_groups(["billing", "other"]),
        ):
            assert [type(each) for each in found.values()] == [NoPermissionError] * 2
        assert brokers.offsets_retention() is None
        # A topic that one may not see is not known.
        assert [type(each) for each in brokers.commit({"billing": {AT: 1}})["billing"].values()] == [
            UnknownPartitionError
        ]


def test_without_a_login_there_is_no_answer(own: KafkaBroker) -> None:
    with Brokers.connect(own.sasl_address, timeout=1) as brokers, pytest.raises(NotConnectedError):
        brokers.partitions()


def test_reading_makes_no_topic_where_the_broker_would(own: KafkaBroker) -> None:
    with Brokers.connect(own.address) as brokers:
        unknown = TopicPartition("never-made", 0)
        brokers.partitions(["never-made"])
        brokers.ranges([unknown])
        brokers.offsets_at({unknown: 0})

        assert "never-made" not in brokers.partitions()
