"""Files that are too large to read, or have no end: an error in bounded time and memory."""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path

import pytest

from zkgroups.exceptions import StorageError
from zkgroups.migration.plan_folder import PLAN, PlanFolder
from zkgroups.storage.files import LocalFiles

from ..cli.running import COMMAND, TIMEOUT, Ended, environment

MEMORY = 2**31


def run(*arguments: str | Path, stdin: str) -> Ended:
    """Run the command with little memory."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

    env = environment({"ZKGROUPS_ZOOKEEPER": "127.0.0.1:1", "ZKGROUPS_TIMEOUT": "1"})
    with Path(stdin).open() as pipe:
        done = subprocess.run(
            [COMMAND, *arguments],
            env=env,
            stdin=pipe,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            preexec_fn=limit,
        )
    return Ended(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("import", "/dev/zero"), "/dev/zero"),
        (("reset", "billing", "--from-file", "/dev/zero"), "/dev/zero"),
        (("import", "-"), "stdin"),
    ],
)
def test_offsets_without_an_end_are_not_imported(arguments: tuple[str, ...], name: str) -> None:
    ended = run("offsets", *arguments, stdin="/dev/zero")
    assert (ended.code, ended.out) == (2, "")
    assert f"{name} cannot be read: it is longer than 256 MiB: split it" in ended.err
    assert "Traceback" not in ended.err


def test_a_plan_with_a_huge_list_of_files_is_an_error(tmp_path: Path) -> None:
    plan = tmp_path / PLAN
    plan.mkdir()
    (plan / "_VERSION").write_text("3")
    (plan / "_SUCCESS").touch()
    os.truncate(plan / "_SUCCESS", 2**40)
    with pytest.raises(StorageError, match="it is longer than 256 MiB"):
        PlanFolder(LocalFiles(), str(tmp_path)).check_rows(3)
