"""How `zkgroups consume` writes a message."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka import Message
from zkgroups_cli.consume.message_format import for_terminal, json_line, parse_format, raw_line

TIME = (1, 1_500_000_000_123)
HEADERS = [("trace", b"1a"), ("trace", b"\xff"), ("empty", None)]


def message(**more: Any) -> Message:
    fields: dict[str, Any] = {"topic": "orders", "partition": 2, "offset": 17, "value": "café".encode(), "key": b"anna"}
    return Message(**fields | {"timestamp": TIME, "headers": HEADERS} | more)


BARE = {"key": None, "value": None, "headers": None, "timestamp": (0, -1)}


def test_a_raw_line_is_the_value_as_it_is() -> None:
    assert raw_line(message(value=b"\xff\n")) == b"\xff\n\n"
    assert raw_line(message(**BARE)) == b"\n"


def test_a_json_line_has_everything_and_what_is_no_text_as_base64() -> None:
    line = json_line(message(key=b"\xff\x00"))
    assert line.endswith(b"\n")
    assert json.loads(line) == {
        "schema": 1,
        "topic": "orders",
        "partition": 2,
        "offset": 17,
        "timestamp_ms": 1_500_000_000_123,
        "headers": [["trace", "1a"], ["trace", {"base64": "/w=="}], ["empty", None]],
        "key": {"base64": "/wA="},
        "value": "café",
    }


def test_in_json_what_a_message_does_not_have_is_null() -> None:
    found = json.loads(json_line(message(**BARE)))
    assert [found[name] for name in ("key", "value", "headers", "timestamp_ms")] == [None, None, [], None]


@pytest.mark.parametrize(
    ("text", "written", "of_bare"),
    [
        (r"%t/%p %o\n", b"orders/2 17\n", b"orders/2 17\n"),
        (r"%k:%s", "anna:café".encode(), b":"),
        (r"%K %S %T", b"4 5 1500000000123", b"-1 -1 -1"),
        (r"%R", b"\0\0\0\x05", b"\xff\xff\xff\xff"),
        (r"%h", b"trace=1a,trace=\xff,empty=NULL", b""),
        (r"100%% \\n\t\x41\x7|\0é", b"100% \\n\tA\x07|\0" + "é".encode(), b"100% \\n\tA\x07|\0" + "é".encode()),
        ("", b"", b""),
    ],
)
def test_a_format_is_filled_in_as_kcat_does_it(text: str, written: bytes, of_bare: bytes) -> None:
    formatter = parse_format(text)
    assert (formatter(message()), formatter(message(**BARE))) == (written, of_bare)


@pytest.mark.parametrize("text", ["%x", "%", "%s %", r"\q", r"a\x", "\\"])
def test_a_format_with_an_unknown_part_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not one of"):
        parse_format(text)


def test_on_a_terminal_a_message_cannot_change_the_screen() -> None:
    formatter = for_terminal(raw_line)
    assert formatter(message(value=b"a\tb\nc\x1b[31m\xff\r")) == b"a\tb\nc\\x1b[31m\\xff\\r\n"
    assert formatter(message()) == "café\n".encode()
