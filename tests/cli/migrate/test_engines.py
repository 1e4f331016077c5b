"""The option `--engine`: which engine runs, and which packages it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from zkgroups_cli.shared import engine_options
from zkgroups_cli.shared.engine_options import EngineKind, EngineOptions
from zkgroups_cli.shared.spark_options import SparkOptions

from zkgroups.storage.files import CONFIGURATION

from ..running import environment, run
from .moving import NOWHERE


def test_auto_starts_spark_for_large_plans_other_file_systems_and_chosen_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in CONFIGURATION:
        monkeypatch.delenv(name, raising=False)

    def is_local(destination: str, *, small: bool, master: str | None = None, **settings: str) -> bool:
        return EngineOptions(EngineKind.AUTO, SparkOptions(master, settings)).is_local(
            destination, is_small=lambda: small
        )

    assert is_local("plan", small=True)
    assert not is_local("plan", small=False)
    assert not is_local("s3a://plans/one", small=True)
    assert not is_local("plan", small=True, master="local[8]")
    assert not is_local("plan", small=True, setting="1")
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")  # it may set another default file system
    assert not is_local("plan", small=True)
    assert is_local("file:/plan", small=True)


def test_without_spark_auto_moves_large_plans_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_options, "find_spec", lambda _name: None)
    assert EngineOptions(EngineKind.AUTO, SparkOptions(None, {})).is_local("plan", is_small=lambda: False)


def test_local_commands_import_neither_spark_nor_pandas(
    zookeeper_hosts: str, kafka: str, group: str, tmp_path: Path
) -> None:
    program = """
import sys
from zkgroups_cli.main import run
for arguments in (["plan"], ["show"], ["apply", "--execute"], ["verify"], ["status"], ["rollback", "--execute"]):
    command, *more = arguments
    assert run(["migrate", command, sys.argv[1], *more]) == 0, command
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"pyspark", "py4j", "pandas"}, loaded
"""
    env = {"ZKGROUPS_ZOOKEEPER": zookeeper_hosts, "ZKGROUPS_BOOTSTRAP_SERVER": kafka}
    subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "plan")], env=environment(env), check=True, timeout=120
    )


@pytest.mark.parametrize(
    ("module", "extra", "engine"),
    [("pyspark", "spark", "spark"), ("pyarrow", "migrate", "local"), ("kafka", "kafka", "auto")],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    tmp_path: Path, module: str, extra: str, engine: str
) -> None:
    (tmp_path / f"{module}.py").write_text(f"raise ModuleNotFoundError('No module', name='{module}')")
    both = ("-z", NOWHERE, "-b", NOWHERE, "--timeout", "0.5", "--engine", engine)
    ended = run("migrate", "apply", "x", *both, env={"PYTHONPATH": str(tmp_path)})
    assert (ended.code, ended.out) == (1, "")
    assert f"pip install 'zkgroups[{extra}]'" in ended.err
