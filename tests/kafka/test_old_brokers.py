"""Brokers before 0.10, which do not answer current clients: they are detected, and get requests that they support."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import pytest
from zkgroups.kafka.old_brokers import settings_for_old

from zkgroups import TopicPartition
from zkgroups.core.kafka_values import NativeGroup, NativeState, OffsetRange
from zkgroups.deadline import Deadline
from zkgroups.exceptions import BrokersTooOldError
from zkgroups.kafka import Brokers
from zkgroups.testing import Server, fresh_chroot

from .old import old_broker

ZERO, ONE = (TopicPartition("orders", number) for number in range(2))
API_VERSIONS, LIST_GROUPS, METADATA = 18, 16, 3


@pytest.fixture(scope="module", params=["0.8.2.2", "0.9.0.1"])
def old(
    request: pytest.FixtureRequest, zookeeper: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """A release, and the address of a broker of that release."""
    folder = tmp_path_factory.mktemp("old")
    with fresh_chroot(zookeeper) as hosts, old_broker(request.param, hosts, folder) as address:
        yield request.param, address


@pytest.mark.zookeeper
@pytest.mark.kafka
@pytest.mark.xdist_group("kafka")
@pytest.mark.timeout(1000)
class TestOldBrokers:
    """One broker of each release for all of these tests."""

    def test_topics_and_logs_of_old_brokers_are_read_without_settings(self, old: tuple[str, str]) -> None:
        with Brokers.connect(old[1], timeout=30) as brokers:
            assert brokers.partitions(["orders"]) == {"orders": (0, 1)}
            assert brokers.ranges([ZERO, ONE]) == {ZERO: OffsetRange(0, 7), ONE: OffsetRange(0, 0)}
            assert brokers.cluster_id() is None
            assert brokers.offsets_retention() is None

    def test_times_are_refused_because_old_brokers_interpret_them_differently(self, old: tuple[str, str]) -> None:
        with Brokers.connect(old[1], timeout=30) as brokers:
            with pytest.raises(BrokersTooOldError, match=r"store no message times, as before release 0\.10\.1"):
                brokers.offsets_at({ZERO: 0, ONE: 0})
            assert brokers.offsets_at({ONE: 0}) == {ONE: 0}

    def test_groups_are_supported_since_0_9_and_refused_before(self, old: tuple[str, str]) -> None:
        release, address = old
        with Brokers.connect(address, timeout=30) as brokers:
            if release.startswith("0.9"):
                assert brokers.commit({"billing": {ZERO: 5}}) == {"billing": {ZERO: None}}
                assert brokers.committed(["billing"])["billing"][ZERO].offset == 5
                assert brokers.groups(["billing"]) == {"billing": NativeGroup("billing", NativeState.DEAD, ())}
                return
            for call in self._calls(brokers):
                with pytest.raises(BrokersTooOldError, match=r"older than release 0\.9"):
                    call()

    def test_the_same_calls_are_refused_if_the_release_is_configured(self, old: tuple[str, str]) -> None:
        release, address = old
        if release.startswith("0.9"):
            return
        named = {"api.version.request": "false", "broker.version.fallback": release}
        with Brokers.connect(address, properties=named, timeout=30) as brokers:
            for call in self._calls(brokers):
                with pytest.raises(BrokersTooOldError):
                    call()

    @staticmethod
    def _calls(brokers: Brokers) -> Sequence[Callable[[], object]]:
        return (
            lambda: brokers.commit({"billing": {ZERO: 5}}),
            lambda: brokers.committed(["billing"]),
            lambda: brokers.groups(["billing"]),
            lambda: brokers.delete_groups(["billing"]),
        )


@contextmanager
def fake(answers: Callable[[int, int], bool | None]) -> Iterator[str]:
    """A server that answers a request by its kind and by the number of earlier requests of that kind. None: no
    answer."""
    server = socket.create_server(("127.0.0.1", 0))
    came: list[int] = []
    kept: list[socket.socket] = []

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                size = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))[0]
                key, _, number = struct.unpack(">hhi", connection.recv(size, socket.MSG_WAITALL)[:8])
                answer = answers(key, came.count(key))
                came.append(key)
                if answer:
                    connection.sendall(struct.pack(">iih", 6, number, 0))
                if answer is None:
                    kept.append(connection)
                else:
                    connection.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(30)
        for connection in kept:
            connection.close()


SETTINGS_08 = {"api.version.request": "false", "broker.version.fallback": "0.8.2"}
SETTINGS_09 = {"api.version.request": "false", "broker.version.fallback": "0.9.0"}


@pytest.mark.parametrize(
    ("answers", "settings"),
    [
        (lambda key, _: key == METADATA, SETTINGS_08),
        (lambda key, _: True if key in (METADATA, LIST_GROUPS) else None, SETTINGS_09),
        (lambda *_: True, {}),
        (lambda *_: False, {}),
        (lambda *_: None, {}),
        (lambda key, before: key != API_VERSIONS or before > 0, {}),
        (lambda key, before: True if key != API_VERSIONS or before > 0 else None, {}),
    ],
    ids=["0.8", "0.9", "new", "closes", "silent", "new, restarting", "new, slow"],
)
def test_a_broker_is_old_only_if_it_answers_twice_but_never_reports_its_versions(
    answers: Callable[[int, int], bool | None], settings: dict[str, str]
) -> None:
    with fake(answers) as address:
        assert settings_for_old(f"PLAINTEXT://{address}", {}, Deadline(30)) == settings


def test_brokers_are_not_probed_without_time_over_tls_or_against_explicit_settings() -> None:
    with fake(lambda key, _: key == METADATA) as address:
        assert settings_for_old(address, {}, Deadline(0.5)) == {}
        assert settings_for_old(address, {"security.protocol": "SSL"}, Deadline(30)) == {}
        assert settings_for_old(address, {"api.version.request": "true"}, Deadline(30)) == {}
        assert settings_for_old(f"127.0.0.1:1, {address}", {}, Deadline(30)) == SETTINGS_08
