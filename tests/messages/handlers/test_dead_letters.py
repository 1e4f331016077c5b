"""What a dead letter carries. `brokers/test_dead_letters.py` has a broker."""

from __future__ import annotations

import logging

import pytest
from confluent_kafka import Message

from tests.waiting import eventually
from zkgroups.messages.dead_letters import DeadLetterWriter, headers
from zkgroups.messages.runs import Letter

from .running import AT


def letter(error: BaseException, **more: object) -> Letter:
    return Letter(Message(topic="orders", partition=0, offset=7, **more), AT, 7, 3, error)  # type: ignore[arg-type]


def test_the_headers_of_the_message_come_first_and_its_origin_is_added() -> None:
    found = headers(letter(ValueError("no amount"), headers=[("trace", b"1"), ("empty", None)]), "billing")
    assert found == [
        ("trace", b"1"),
        ("empty", None),
        ("zkgroups.topic", b"orders"),
        ("zkgroups.partition", b"0"),
        ("zkgroups.offset", b"7"),
        ("zkgroups.group", b"billing"),
        ("zkgroups.attempts", b"3"),
        ("zkgroups.error", b"ValueError: no amount"),
    ]


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (ValueError("\udcff \N{SNOWMAN}"), "ValueError: \\udcff \N{SNOWMAN}"),
        (ValueError("x" * 5_000), "ValueError: " + "x" * 988),
        (ValueError(), "ValueError"),
    ],
)
def test_any_error_fits_into_a_header(error: Exception, shown: str) -> None:
    assert dict(headers(letter(error), "billing"))["zkgroups.error"] == shown.encode()


def test_an_error_without_a_text_is_named() -> None:
    assert b"Unprintable" in (dict(headers(letter(Unprintable()), "billing"))["zkgroups.error"] or b"")


def test_while_brokers_are_down_each_kind_of_error_is_one_warning_and_the_client_logs_at_debug(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)

    def logged(name: str) -> list[logging.LogRecord]:
        return [each for each in caplog.records if each.name == name]

    writer = DeadLetterWriter({"bootstrap.servers": "127.0.0.1:1"}, "failed", "billing")
    try:
        writer.write(letter(ValueError()), lambda _error: None)
        assert eventually(lambda: len(logged("zkgroups.librdkafka")) > 10)
        assert eventually(lambda: any(each.levelno > logging.DEBUG for each in logged("zkgroups.consumer")))
    finally:
        writer.close()
    assert {each.levelno for each in logged("zkgroups.librdkafka")} == {logging.DEBUG}
    warned = [each.getMessage() for each in logged("zkgroups.consumer") if each.levelno > logging.DEBUG]
    assert 1 <= len(warned) <= 4
    start = "dead letters of group 'billing' cannot be written to 'failed' now, trying again: "
    assert all(text.startswith(start) for text in warned)
    assert capfd.readouterr().err == ""
