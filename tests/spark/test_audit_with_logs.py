"""An audit together with transaction logs has each commit once, whether the audit, the logs or both have it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.cli.running import run
from tests.datadir.small_directories import named
from tests.lasting import lasting_client
from zkgroups.exceptions import RefusedError
from zkgroups.spark import HistoryOptions, HistoryTable, SourceOptions, read_audit, run_audit
from zkgroups.testing import ZooKeeperServer

pytestmark = [pytest.mark.zookeeper, pytest.mark.spark]

PATH = "/consumers/g/offsets/t/0"
OF_ANOTHER = "/consumers/h/offsets/t/0"


@pytest.fixture(scope="module")
def audited(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An audit that has read every 40th commit, up to 240, and a data directory without its first logs, up to 250.

    The audit is of one group, and another group commits, too.
    """
    folder = tmp_path_factory.mktemp("audited")
    options = ("-Dzookeeper.snapCount=32", "-Dzookeeper.preAllocSize=64")
    with ZooKeeperServer(data_dir=folder / "data", jvm_options=options) as server:
        with lasting_client(server.address) as client:
            client.create(PATH, b"0", makepath=True)
            client.create(OF_ANOTHER, b"0", makepath=True)
            source = SourceOptions(zookeeper=server.address, groups="g")
            for offset in range(251):
                client.set(PATH, b"%d" % offset)
                if offset % 40 == 0:
                    run_audit(spark, str(folder / "audit"), source, once=True)
                    client.set(OF_ANOTHER, b"7")
        server.kill()
    for log in sorted((folder / "data" / "version-2").glob("log.*"), key=named)[:4]:
        log.unlink()
    return folder / "audit", folder / "data"


def test_commits_before_the_logs_come_from_the_audit_and_later_ones_from_the_logs(
    spark: SparkSession, audited: tuple[Path, Path]
) -> None:
    audit, data = audited
    first_log = min(map(named, (data / "version-2").glob("log.*")))
    recorded = [(row["offset"], row["zxid"]) for row in read_audit(spark, str(audit)).collect()]
    assert sorted(offset for offset, _ in recorded) == list(range(0, 241, 40))
    logs = HistoryOptions(table=HistoryTable.COMMITS, data_dir=str(data))
    found = read_audit(spark, str(audit), logs=logs)
    assert found.columns == read_audit(spark, str(audit)).columns
    rows = found.orderBy("zxid").collect()
    older = sorted(offset for offset, zxid in recorded if zxid < first_log)
    assert len(older) > 1
    first = rows[len(older)]["offset"]
    assert [row["offset"] for row in rows] == [*older, *range(first, 251)]
    assert older[-1] < first <= older[-1] + 40
    assert {row["layout"] for row in rows} == {"legacy"}
    assert [row["batch"] is None for row in rows] == [row["zxid"] >= first_log for row in rows]


def test_an_audit_of_another_layout_is_not_joined(
    spark: SparkSession, audited: tuple[Path, Path], tmp_path: Path
) -> None:
    audit, data = audited
    storm = shutil.copytree(audit, tmp_path / "audit")
    description = json.loads((storm / "_audit.json").read_text())
    (storm / "._audit.json.crc").unlink()
    (storm / "_audit.json").write_text(json.dumps(description | {"layout": "storm:/kafkastorm"}))
    with pytest.raises(RefusedError, match="has the layout storm:/kafkastorm, which is not read from logs"):
        read_audit(spark, str(storm), logs=HistoryOptions(table=HistoryTable.COMMITS, data_dir=str(data)))


@pytest.mark.soak  # starts another Spark
def test_the_command_prints_them_in_order(audited: tuple[Path, Path]) -> None:
    audit, data = audited
    ended = run("audit", audit, "--show", "--from-data-dir", data, "--groups", "g", "-o", "csv", "--no-headers")
    assert ended.code == 0, ended.err
    offsets = [int(line.split(",")[5]) for line in ended.lines]
    assert offsets == sorted(set(offsets))
    assert offsets[-1] == 250
    assert len(offsets) > 100
