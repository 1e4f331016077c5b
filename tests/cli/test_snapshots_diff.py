"""`zkgroups snapshots diff` at the command line: what is said before Spark is started.

With Spark, the command is in tests/spark/test_history_diff.py, where one is running.
"""

from __future__ import annotations

import pytest

from .running import run

WITHOUT_JAVA = {"JAVA_HOME": "", "PATH": "/nowhere"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--only", "moved,lost"), "'lost' is none of moved, unchanged, went-back, new, gone, unreadable"),
        (("--fail-on", ""), "'' is none of moved"),
        # A snapshot does not tell an idle group from one that is stuck.
        (("--fail-on", "stalled-held"), "'stalled-held' is none of moved"),
        (("--by", "owner"), "--by"),
        (("--groups", "("), "groups"),
        (("latest", "latest", "latest"), "unexpected extra argument"),
    ],
    ids=lambda each: str(each[-1]),
)
def test_what_is_no_state_or_no_level_is_wrong_usage(arguments: tuple[str, ...], said: str) -> None:
    ended = run("snapshots", "diff", "d", *arguments, env=WITHOUT_JAVA)
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err
