"""Brokers that are unreachable, start late, hang, or end: an error in time with the reason, or the late answer."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.testing.waiting import eventually, is_alive
from zkgroups.core.kafka_values import NativeState, OffsetRange
from zkgroups.core.znodes.topic_partition import TopicPartition
from zkgroups.exceptions import NotConnectedError, OutcomeUnknownError
from zkgroups.input_errors import ZkgroupsException
from zkgroups.kafka import Brokers, worker
from zkgroups.testing import KafkaBroker, kafka_broker

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(1000)]

AT = TopicPartition("orders", 0)

CALLS: dict[str, Callable[[Brokers], object]] = {
    "partitions": lambda brokers: brokers.partitions(),
    "ranges": lambda brokers: brokers.ranges([AT]),
    "offsets_at": lambda brokers: brokers.offsets_at({AT: 0}),
    "committed": lambda brokers: brokers.committed(["billing"]),
    "groups": lambda brokers: brokers.groups(["billing"]),
    "commit": lambda brokers: brokers.commit({"billing": {AT: 7}}),
    "delete_groups": lambda brokers: brokers.delete_groups(["no-such-group"]),
    "offsets_retention": lambda brokers: brokers.offsets_retention(),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("address", "reason"),
    [("127.0.0.1:1", "Connection refused"), ("no-such-host.invalid:9092", "Failed to resolve")],
)
def test_unreachable_brokers_are_an_error_in_time_and_nothing_is_printed(
    capfd: pytest.CaptureFixture[str], call: str, address: str, reason: str
) -> None:
    started = time.monotonic()

    with (
        Brokers.connect(address, timeout=1.5) as brokers,
        pytest.raises(NotConnectedError, match=rf"no broker at {address} answered within 1\.5 s: .*{reason}"),
    ):
        CALLS[call](brokers)

    assert time.monotonic() - started < 20  # name resolution may take a while, and cannot be interrupted
    assert capfd.readouterr() == ("", "")


def test_nothing_is_printed_if_logging_is_not_configured() -> None:
    program = """
from zkgroups.exceptions import NotConnectedError
from zkgroups.kafka import Brokers
try:
    Brokers.connect("127.0.0.1:1", timeout=0.5).partitions()
except NotConnectedError:
    print("away")
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)

    assert (result.stdout, result.stderr) == ("away\n", "")


def test_connecting_sends_no_request() -> None:
    started = time.monotonic()
    with Brokers.connect("127.0.0.1:1", timeout=15) as brokers:
        assert repr(brokers) == "<Brokers 127.0.0.1:1>"
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("call", CALLS)
def test_a_suspended_broker_is_an_error_in_time_and_closing_does_not_wait(own: KafkaBroker, call: str) -> None:
    brokers = Brokers.connect(own.address, timeout=3.0)
    brokers.partitions()
    own.suspend()
    try:
        started = time.monotonic()
        with pytest.raises(NotConnectedError, match=own.address):
            CALLS[call](brokers)
        brokers.close()
        assert time.monotonic() - started < 25
    finally:
        own.resume()


def test_a_broker_that_restarts_within_the_timeout_answers(own: KafkaBroker, capfd: pytest.CaptureFixture[str]) -> None:
    """Groups are requested as soon as the broker answers. If that is too early, librdkafka ends the worker process."""
    with Brokers.connect(own.address, timeout=60) as brokers:
        brokers.partitions()
        own.kill()
        start = threading.Thread(target=own.start)
        start.start()
        try:
            assert brokers.committed(["billing"])["billing"][AT].offset == 7
            assert brokers.ranges([AT]) == {AT: OffsetRange(0, 0)}
        finally:
            start.join()
    assert capfd.readouterr().err == ""


def _instead(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str) -> Path:
    """Replace the worker by another program, which can run the real one. Return a file that exists once it has run."""
    marker = tmp_path / "ran"
    script = tmp_path / "asking.py"
    before = "import io, os, signal, subprocess, sys, pathlib\nfrom zkgroups.kafka import worker_main as asking\n"
    script.write_text(f"{before}ran = pathlib.Path({str(marker)!r})\nfirst = not ran.exists()\nran.touch()\n{program}")
    monkeypatch.setattr(worker, "_COMMAND", (sys.executable, str(script)))
    return marker


@pytest.mark.parametrize(
    "kill", [pytest.param(True, id="killed"), pytest.param(False, id="stopped", marks=pytest.mark.soak)]
)
def test_requests_during_a_restart_of_the_broker_are_carried_out_or_reported_as_failed(
    own: KafkaBroker, kill: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """Commits, descriptions and deletions continue during the restart, even if worker processes end."""
    doing = {_commit_all: 1, _describe_all: 1, _delete_all: 0}
    groups = {call: [f"restarted{call.__name__}-{number}" for number in range(600)] for call in doing}
    with ExitStack() as stack:
        brokers = {call: stack.enter_context(Brokers.connect(own.address, timeout=90)) for call in doing}
        for call in (_describe_all, _delete_all):
            assert _commit_all(brokers[_commit_all], groups[call]) == []
        pool = stack.enter_context(ThreadPoolExecutor(len(doing)))
        called = {call: pool.submit(call, brokers[call], groups[call]) for call in doing}
        wait(called.values(), 0.7)  # in the middle
        (own.kill if kill else own.stop)()
        own.start()
        for call, there in doing.items():
            assert called[call].result(200) == [], call
            found = brokers[call].committed(groups[call])
            assert {len(offsets) for offsets in found.values()} == {there}
            assert {offset.offset for offsets in found.values() for offset in offsets.values()} <= {9}
    assert capfd.readouterr().err == ""


def _commit_all(brokers: Brokers, groups: list[str]) -> list[object]:
    found = brokers.commit({group: {AT: 9} for group in groups})
    return [error for outcomes in found.values() for error in outcomes.values() if error is not None]


def _describe_all(brokers: Brokers, groups: list[str]) -> list[object]:
    return [each for each in brokers.groups(groups).values() if getattr(each, "state", None) is not NativeState.EMPTY]


def _delete_all(brokers: Brokers, groups: list[str]) -> list[object]:
    return [error for error in brokers.delete_groups(groups).values() if error is not None]


def _only_lists_topics(admin: AdminClient) -> bool:
    try:
        return bool(admin.list_topics(timeout=2))
    except KafkaException:
        return False


def test_a_commit_waits_for_a_broker_that_never_had_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker has yet to create the topic for groups, and may not answer the first request."""
    monkeypatch.setattr(kafka_broker, "serves", _only_lists_topics)
    with KafkaBroker() as fresh, Brokers.connect(fresh.address, timeout=60) as brokers:
        fresh.create_topic("orders")
        assert "__consumer_offsets" not in brokers.partitions()

        assert brokers.commit({"billing": {AT: 3}}) == {"billing": {AT: None}}


_DEAF = """
question = asking.json.loads(sys.stdin.readline())
if question["kind"] in ("commit", "delete"):
    %s
    os.kill(os.getpid(), signal.SIGKILL)
sys.stdin = io.StringIO(asking.json.dumps(question))
asking.main()
"""
_SAYS_THAT_IT_SENDS = "print('{\"sent\": 1}', flush=True)"
_REALLY_SENDS = f"""{_SAYS_THAT_IT_SENDS}
    ask = asking._KINDS[question["kind"]](question["config"])
    for _ in ask(question["waves"][0], 10): pass"""


def test_a_request_whose_answer_is_lost_is_resolved_by_reading(
    own: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _instead(monkeypatch, tmp_path, _DEAF % _REALLY_SENDS)

    with Brokers.connect(own.address, timeout=30) as brokers:
        assert brokers.commit({"unheard": {AT: 5}}) == {"unheard": {AT: None}}
        assert brokers.committed(["unheard"])["unheard"][AT].offset == 5
        assert brokers.delete_groups(["unheard"]) == {"unheard": None}
        assert brokers.committed(["unheard"]) == {"unheard": {}}


@pytest.mark.parametrize(
    ("sent", "kind"), [(_SAYS_THAT_IT_SENDS, OutcomeUnknownError), ("pass", NotConnectedError)], ids=["sent", "not"]
)
def test_an_unanswered_request_and_an_unsent_request_have_different_errors(
    own: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: str, kind: type[ZkgroupsException]
) -> None:
    _instead(monkeypatch, tmp_path, _DEAF % sent)

    with Brokers.connect(own.address, timeout=4) as brokers:
        committed = brokers.commit({"billing": {AT: 8}})["billing"][AT]
        deleted = brokers.delete_groups(["billing"])["billing"]

        assert type(committed) is kind
        assert type(deleted) is kind
        assert "billing" in str(committed)
        assert brokers.committed(["billing"])["billing"][AT].offset == 7


def test_if_a_worker_process_is_killed_another_one_requests_the_rest(
    own: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = """
question = sys.stdin.readline()
left = len(asking.json.loads(question)["waves"][0])
if first:
    print('{"sent": 2}')
    print('{"n": 1, "found": [["orders", 0, 1, null, null]]}')
    print('{"n": 0, "fou', end="", flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)
assert left == 1, left
sys.stdin = io.StringIO(question)
asking.main()
"""
    _instead(monkeypatch, tmp_path, program)

    with Brokers.connect(own.address) as brokers:
        found = brokers.committed(["billing", "others"])

    assert {group: offsets[AT].offset for group, offsets in found.items()} == {"billing": 7, "others": 1}


def test_a_worker_process_that_always_dies_is_an_error_in_time(
    own: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _instead(monkeypatch, tmp_path, "os.kill(os.getpid(), signal.SIGSEGV)")
    started = time.monotonic()

    with (
        Brokers.connect(own.address, timeout=4) as brokers,
        pytest.raises(NotConnectedError, match=r"group 'billing' within 4 s: .*coordinator"),
    ):
        brokers.committed(["billing"])

    assert time.monotonic() - started < 30


def test_a_worker_process_that_cannot_run_is_an_error_at_once(
    own: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _instead(monkeypatch, tmp_path, "sys.exit(3)")

    with (
        Brokers.connect(own.address) as brokers,
        pytest.raises(ZkgroupsException, match="ended with status 3"),
    ):
        brokers.committed(["billing"])


def test_one_worker_process_sends_all_requests_and_ends_with_close(own: KafkaBroker) -> None:
    with Brokers.connect(own.address) as brokers:
        brokers.committed(["billing"])
        first = brokers._open().asker._running()
        brokers.groups(["billing"])
        assert brokers._open().asker._running() is first
        assert is_alive(first.pid)

    assert not is_alive(first.pid)


_SLOW = """
def slow(config):
    def ask(questions, patience):
        pathlib.Path(questions[0]).write_text(f"{os.getpid()} ")
        signal.pause()
    return ask
asking._KINDS["slow"] = slow
asking.main()
"""
_ASKS = """
import sys
from zkgroups.kafka import worker
worker._COMMAND = sys.argv[1:3]
worker.Asker({}).ask("slow", [[sys.argv[3]]], 60)
"""


def test_a_worker_process_sends_no_requests_after_its_parent_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the request would be carried out after another client has read the state."""
    _instead(monkeypatch, tmp_path, _SLOW)
    asking = tmp_path / "pid"
    with subprocess.Popen([sys.executable, "-c", _ASKS, *worker._COMMAND, str(asking)]) as process:
        assert eventually(lambda: asking.exists() and asking.read_text().endswith(" "), timeout=60)
        process.kill()

    assert eventually(lambda: not is_alive(int(asking.read_text())))
