"""The offsets that Kafka's own groups have committed, asked for by a process of its own.

When a broker answers that it is not, or not yet, the coordinator of a group, librdkafka (2.16, and all before) ends the
process that has asked (its issue 5040). Coordinators move whenever a broker is restarted, so that process must not be
ours: see `asking.py`. Where it was ended, another one asks for what is left.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from ..core.model import NativeOffset, TopicPartition
from ..exceptions import InvalidNameError, NotConnectedError, ZkgroupsException
from ..zookeeper.deadline import Deadline
from .errors import is_retriable, translate, words
from .patience import attempts

Committed = dict[TopicPartition, NativeOffset]

# Groups of one process, and how many of them a broker is asked for before it has answered.
_AT_A_TIME: Final = 500
_IN_FLIGHT: Final = 100
_COMMAND: Final = (sys.executable, "-m", "zkgroups.kafka.asking")
# In seconds, beside what it waits for brokers.
_START: Final = 10.0


def check_native_group(name: object) -> str:
    """Return the name of a group of Kafka's own, which may be nearly anything, or refuse it."""
    if not isinstance(name, str):
        raise InvalidNameError("group", name, "is not text")
    if not name:
        raise InvalidNameError("group", name, "is empty")
    # To librdkafka the name would end there, and be that of another group.
    if "\0" in name or any("\ud800" <= letter <= "\udfff" for letter in name):
        raise InvalidNameError("group", name, "has letters that cannot be sent")
    return name


def committed(config: Mapping[str, str], groups: Sequence[str], timeout: float) -> dict[str, Committed]:
    """The offsets of these groups, by group."""
    found: dict[str, Committed] = {}
    for first in range(0, len(groups), _AT_A_TIME):
        found |= _all_of(config, groups[first : first + _AT_A_TIME], Deadline(timeout))
    return {group: found[group] for group in groups}


def _all_of(config: Mapping[str, str], groups: Sequence[str], deadline: Deadline) -> dict[str, Committed]:
    found: dict[str, Committed] = {}
    reason = KafkaError(KafkaError.NOT_COORDINATOR)
    for patience in attempts(deadline):
        for answer in _ask(config, [group for group in groups if group not in found], patience):
            group = answer["group"]
            if "offsets" in answer:
                found[group] = _offsets(group, answer["offsets"])
                continue
            reason = KafkaError(*answer["error"])
            if not is_retriable(reason):
                raise translate(reason, f"group {group!r}") from KafkaException(reason)
        if len(found) == len(groups):
            return found
    missing = next(group for group in groups if group not in found)
    raise NotConnectedError(
        f"the offsets of group {missing!r} were not had within {deadline.seconds:g} s: {words(reason)}"
    ) from KafkaException(reason)


def _ask(config: Mapping[str, str], groups: Sequence[str], patience: float) -> Iterator[dict[str, Any]]:
    """The answers that one process got; those for groups it was ended over are not there."""
    question = json.dumps({"config": config, "groups": groups, "patience": patience, "in_flight": _IN_FLIGHT})
    process = subprocess.Popen(
        _COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        text=True,
        encoding="utf-8",
        start_new_session=True,  # Ctrl-C is for us
    )
    lines = _output(process, question, patience * (1 + len(groups) // _IN_FLIGHT) + _START).splitlines(keepends=True)
    if process.returncode > 0:
        raise ZkgroupsException(f"the process that asks the brokers for groups ended with {process.returncode}")
    # The last line may have been cut off.
    return (json.loads(line) for line in lines if line.endswith("\n"))


def _output(process: subprocess.Popen[str], question: str, timeout: float) -> str:
    with process:
        try:
            return process.communicate(question, timeout)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            return process.communicate()[0]
        except BaseException:
            process.kill()
            raise


def _offsets(group: str, rows: Sequence[tuple[str, int, int, str | None, int | None]]) -> Committed:
    """By partition, in order."""
    return {
        (at := TopicPartition(topic, number)): NativeOffset(group, at, offset, metadata, epoch)
        for topic, number, offset, metadata, epoch in sorted(rows, key=lambda row: row[:2])
    }
