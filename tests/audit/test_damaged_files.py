"""Small files of an audit that were changed, lost, or are being replaced."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from zkgroups.audit.journal import Journal
from zkgroups.audit.local_audit import run_audit
from zkgroups.audit.state import FinishedBatch
from zkgroups.core.ensemble_position import EnsemblePosition
from zkgroups.exceptions import RefusedError
from zkgroups.storage.files import LocalFiles
from zkgroups.tables.source_options import SourceOptions

from ..cli.conftest import Zkgroups
from ..cli.conftest import kazoo as kazoo
from ..cli.conftest import zkgroups as zkgroups

CHANGES = {
    "_audit.json": (
        "\0{",
        "[]",
        '{"groups": 5, "topics": null, "first_batch": 0}',
        '{"groups": null, "topics": null}',
        '{"groups": null, "topics": null, "first_batch": 0, "cluster": "c"}',
    ),
    "_position.json": ("abc", "[]", '{"batch": 0}'),
}


@pytest.fixture
def hosts(zookeeper_hosts: str, kazoo: Any) -> str:
    kazoo.create("/consumers/g/offsets/t/0", b"5", makepath=True)
    return zookeeper_hosts


@pytest.mark.zookeeper
@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_small_file_is_an_error_that_names_it(
    hosts: str, zkgroups: Zkgroups, tmp_path: Path, name: str
) -> None:
    run_audit(str(tmp_path), hosts, once=True)
    for text in CHANGES[name]:
        (tmp_path / name).write_text(text)
        ended = zkgroups("audit", tmp_path, "--once", "--engine", "local")
        assert (ended.code, ended.out) == (10, ""), text
        assert f"{tmp_path}/{name} was changed after the audit wrote it" in ended.err


@pytest.mark.zookeeper
def test_an_audit_without_its_description_refuses_other_groups(hosts: str, zkgroups: Zkgroups, tmp_path: Path) -> None:
    run_audit(str(tmp_path), hosts, once=True)
    about = (tmp_path / "_audit.json").read_bytes()
    (tmp_path / "_audit.json").unlink()

    for arguments in (("--once", "--groups", "g1"), ("--once",), ("--show",)):
        ended = zkgroups("audit", tmp_path, *arguments, "--engine", "local")
        assert (ended.code, ended.out) == (10, "")
        assert "has lost its _audit.json" in ended.err

    # A run was killed before it renamed the new file.
    (tmp_path / "_audit.json.new").write_bytes(about)
    with pytest.raises(RefusedError, match=r"is of groups \.\*, topics \.\*, not of groups g1"):
        run_audit(str(tmp_path), SourceOptions(zookeeper=hosts, groups="g1"), once=True)
    assert run_audit(str(tmp_path), hosts, once=True).commits == 0


def finished(number: int) -> FinishedBatch:
    return FinishedBatch(number, EnsemblePosition(7, 3, 5), 9)


class Steps(LocalFiles):
    """A file system that calls `after` after each rename or deletion."""

    def __init__(self, after: Callable[[], None]) -> None:
        self._after = after

    def move(self, here: str, there: str) -> None:
        super().move(here, there)
        self._after()

    def delete(self, path: str) -> None:
        super().delete(path)
        self._after()


def test_a_small_file_can_be_read_at_every_step_of_its_replacement(tmp_path: Path) -> None:
    Journal(LocalFiles(), str(tmp_path)).write_finished_batch(finished(1))
    seen: list[int] = []

    def look() -> None:
        found = Journal(LocalFiles(), str(tmp_path)).finished_batch()
        seen.append(-1 if found is None else found.number)

    Journal(Steps(look), str(tmp_path)).write_finished_batch(finished(2))

    assert seen == [1, 1, 2, 2]
