"""Durations on the command line, and names of commands that are typed wrongly."""

from __future__ import annotations

import pytest

from .running import run

NOBODY = ("-z", "127.0.0.1:1", "--timeout", "0.1")


@pytest.mark.parametrize("text", ["1h", "PT1H", "90d", "P7D"])
def test_ages_are_accepted_in_both_forms(text: str) -> None:
    for command in (("doctor", "--stale-after"), ("groups", "prune", "--older-than")):
        assert run(*NOBODY, *command, text).code == 7
    assert run(*NOBODY, "offsets", "reset", "g", "--all-topics", "--from-audit", "/a", "--by-duration", text).code == 7


@pytest.mark.parametrize(
    ("text", "code"), [("2", 7), ("0.5", 7), ("1m", 7), ("PT1S", 7), ("nan", 2), ("inf", 2), ("-1", 2)]
)
def test_seconds_may_have_a_unit(text: str, code: int) -> None:
    assert run(*NOBODY, "watch", "g", "--for", text).code == code
    assert run(*NOBODY, "claim", "g", "t", "0", "--wait", text).code == code


@pytest.mark.parametrize("text", ["60", "1", "h", "1.5h"])
def test_an_age_needs_a_unit(text: str) -> None:
    refused = run(*NOBODY, "doctor", "--stale-after", text)
    assert (refused.code, "it must be like 7d, 12h, 30m, 90s, P7D or PT2H30M" in refused.err) == (2, True)


@pytest.mark.parametrize(("typed", "meant"), [(("offset", "list"), "offsets"), (("groups", "describ"), "describe")])
def test_an_unknown_command_suggests_a_similar_one(typed: tuple[str, ...], meant: str) -> None:
    refused = run(*typed)
    assert (refused.code, f"Did you mean {meant!r}?" in refused.err) == (2, True)
    assert "Did you mean" not in run("xyzzy").err
