"""The pytest plugin as users have it, in separate pytest runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from zkgroups.exceptions import MissingDependencyError

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def _alone(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ZKGROUPS_REQUIRE", raising=False)
    monkeypatch.delenv("ZKGROUPS_TEST_ZOOKEEPER", raising=False)


@pytest.fixture
def _no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_java() -> Path:
        raise MissingDependencyError("no Java: install one")

    for server in ("zookeeper_server", "kafka_broker"):
        monkeypatch.setattr(f"zkgroups.testing.{server}.find_java", find_java)


PLUGIN = ("-p", "zkgroups.testing.plugin")


SERVERS = {"zkgroups_zookeeper": "zookeeper", "zkgroups_kafka": "kafka", "zkgroups_legacy_kafka": "kafka"}


@pytest.mark.usefixtures("_no_java")
@pytest.mark.parametrize("fixture", SERVERS)
def test_a_missing_server_skips_the_test_or_fails_it_if_it_is_required(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, fixture: str
) -> None:
    name = SERVERS[fixture]
    pytester.makepyfile(f"def test_it({fixture}): pass")

    result = pytester.runpytest(*PLUGIN, "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(f"*{name}: no Java: install one")

    monkeypatch.setenv("ZKGROUPS_REQUIRE", f"spark, {name}")
    result = pytester.runpytest(*PLUGIN)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(f"{name} is required by ZKGROUPS_REQUIRE and missing: no Java: install one")


def test_the_plugin_loads_nothing_heavy(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # anyio's plugin loads asyncio
    pytester.makepyfile("""
        import sys

        def test_it():
            servers = {"zkgroups.testing.kafka_broker", "zkgroups.testing.zookeeper_server"}
            assert not (servers | {"docker", "pyspark", "asyncio", "confluent_kafka"}) & set(sys.modules)
    """)

    pytester.runpytest_subprocess(*PLUGIN).assert_outcomes(passed=1)


@pytest.mark.zookeeper
def test_each_test_has_its_own_empty_registry_on_one_server(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        seen = set()

        @pytest.mark.parametrize("number", range(3))
        def test_it(zkgroups_registry, zkgroups_zookeeper, zkgroups_hosts, number):
            assert list(zkgroups_registry) == []
            zkgroups_registry.group("billing").create()
            assert [group.name for group in zkgroups_registry] == ["billing"]
            seen.add((zkgroups_zookeeper.address, zkgroups_hosts))

        def test_seen(zkgroups_zookeeper):
            assert len(seen) == 3
            assert {address for address, _ in seen} == {zkgroups_zookeeper.address}
    """)

    pytester.runpytest(*PLUGIN).assert_outcomes(passed=4)
