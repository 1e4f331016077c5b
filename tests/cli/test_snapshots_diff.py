"""`zkgroups snapshots diff`: errors before Spark starts.

For tests with Spark see tests/spark/test_history_diff.py.
"""

from __future__ import annotations

import pytest

from .running import run

WITHOUT_JAVA = {"JAVA_HOME": "", "PATH": "/nowhere"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--only", "moved,lost"), "'lost' is not one of moved, unchanged, went-back, new, gone, unreadable"),
        (("--fail-on", ""), "'' is not one of moved"),
        # A snapshot cannot tell an idle group from a stuck one.
        (("--fail-on", "stalled-held"), "'stalled-held' is not one of moved"),
        (("--by", "owner"), "--by"),
        (("--groups", "("), "groups"),
        (("latest", "latest", "latest"), "unexpected extra argument"),
    ],
    ids=lambda each: str(each[-1]),
)
def test_an_unknown_state_or_level_is_wrong_usage(arguments: tuple[str, ...], said: str) -> None:
    ended = run("snapshots", "diff", "d", *arguments, env=WITHOUT_JAVA)
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err
