"""Times and durations as the command line accepts them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkgroups.core.time_formats import parse_duration, parse_time
from zkgroups.exceptions import InvalidOptionError

NOON = 1769860800000
INVALID_TIMES = [
    "",
    "2026-01",
    "2026-01-31x12:00:00",
    "2026-02-30T12:00:00.000",
    "2026-01-31T25:00:00.000",
    "yesterday",
]
INVALID_TIMES += ["2h", "1769860800500", "٢٠٢٦-01-31T12:00:00.000"]
INVALID_TIMES += [f"2026-01-31T12:00:00.000{zone}" for zone in (" Z", "+01:00x", "+99:00")]
INVALID_DURATIONS = ["", "90", "d", "-1d", "1.5h", "90 d", "90D", "1d12h", "٣d", "90d\n", "9" * 30 + "d"]
INVALID_DURATIONS += ["P", "PT", "P1DT", "7D", "P1H", "P1W", "P-1D", "-P1D", "PT1.5H", "P1D ", "P1M"]


def test_a_time_without_a_zone_is_utc() -> None:
    times = {
        "1970-01-01T00:00:01": 1000,
        "1970-01-01T00:00:00.005Z": 5,
        **dict.fromkeys([f"1970-01-01T01:00:00.000{zone}" for zone in ("+01:00", "+0100", "+01")], 0),
        "1969-12-31T23:30:00.000-00:30": 0,
        "2026-01-31T12:00:00.5": NOON + 500,
        "2026-01-31": NOON - 43_200_000,
        **dict.fromkeys(["2026-01-31T12:00", "2026-01-31 12:00:00", "20260131T1200"], NOON),
        "2026-01-31 12:00+01:00": NOON - 3_600_000,
    }
    assert {text: parse_time(text) for text in times} == times
    for text in INVALID_TIMES:
        with pytest.raises(InvalidOptionError, match="must be like 2026"):
            parse_time(text)


def test_a_time_may_be_a_day_or_a_duration_ago() -> None:
    now = NOON + 500
    times = {"now": now, "today": NOON - 43_200_000, "yesterday": NOON - 129_600_000, "90s": now - 90_000, "99999d": 0}
    times |= {"PT1H": now - 3_600_000, "2026-01-31": NOON - 43_200_000}
    assert {text: parse_time(text, now_ms=now) for text in times} == times


ZONES = st.sampled_from([UTC, timezone(timedelta(hours=-3, minutes=-30))])


@given(st.datetimes(timezones=ZONES).filter(lambda time: 2 < time.year < 9998))
def test_times_are_parsed_as_python_formats_them(time: datetime) -> None:
    whole = time.replace(microsecond=time.microsecond // 1000 * 1000)
    assert parse_time(whole.isoformat(timespec="milliseconds")) == round(whole.timestamp() * 1000)


def test_an_iso_duration_is_parsed_as_java_parses_it() -> None:
    durations = {"P7D": 604_800_000, "PT2H30M": 9_000_000, "P1DT1M": 86_460_000, "PT0.001S": 1, "pt1s": 1000, "PT0S": 0}
    durations |= {"PT1.123456789S": 1123}
    assert {text: parse_duration(text) for text in durations} == durations
    for text in INVALID_DURATIONS:
        with pytest.raises(InvalidOptionError, match=r"^the duration is .* must be like 7d"):
            parse_duration(text)


@given(st.integers(0, 10**9 - 1), st.sampled_from([("d", 86400), ("h", 3600), ("m", 60), ("s", 1)]))
def test_a_short_duration_is_a_number_with_a_unit(number: int, unit: tuple[str, int]) -> None:
    assert parse_duration(f"{number}{unit[0]}") == number * unit[1] * 1000
