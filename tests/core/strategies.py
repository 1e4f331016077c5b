"""Hypothesis strategies for the tests of the core."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

ALLOWED = st.characters(exclude_categories=["Cs", "Co", "Cc"], max_codepoint=0xFFEF, exclude_characters="/")
"""The characters that a ZooKeeper server accepts in a name, by Unicode categories."""

NAMES = st.text(ALLOWED, min_size=1, max_size=30).filter(lambda name: name not in {".", ".."})

KAFKA_LETTERS = string.ascii_letters + string.digits + "._-"
TOPICS = st.text(KAFKA_LETTERS, min_size=1, max_size=30).filter(lambda name: name not in {".", ".."})

_PIECES = ["a", "b", "t6", ".*", ".", "|", ",", "(", ")", "[", "]", "{", "}", "{2}", "{,2}", "*", "+", "?", "\\", "\\d"]
_PIECES += [
    "\\.",
    "^",
    "$",
    "(?:",
    "(?i)",
    "(?P<n>",
    "(?=",
    "[^",
    "a-z",
    "-",
    "&&",
    " ",
    '"',
    "'",
    "\t",
    "1",
    "\\1",
    "é",
]
_PIECES += ["#"]
EXPRESSIONS = st.lists(st.sampled_from(_PIECES), max_size=8).map("".join) | st.text(max_size=12)
"""Expressions, and texts that look like expressions."""


def anything_json(keys: Sequence[str] = ()) -> st.SearchStrategy[Any]:
    """Any JSON, with NaN and unpaired surrogates. Objects often have one of `keys`."""
    text = st.text(st.characters(codec=None), max_size=8)
    words = st.sampled_from(["static", "white_list", "black_list", "t6", "t.*", "(", "a{", "0", "1795255170109"])
    numbers = st.integers() | st.integers(-2, 2) | st.sampled_from([2**31, 2**63, 10**400]) | st.floats()
    leaves = st.none() | st.booleans() | numbers | text | words
    names = st.sampled_from(sorted(keys)) | text if keys else text | words
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=5), max_leaves=12
    )


NEARLY_REGISTRATIONS = st.fixed_dictionaries(
    {"pattern": st.sampled_from(["static", "white_list", "black_list", "other"]) | anything_json()},
    optional={
        "subscription": st.dictionaries(NAMES | EXPRESSIONS, st.integers(-1, 3) | anything_json(), max_size=3)
        | anything_json(),
        "timestamp": anything_json(),
        "version": anything_json(),
        "client": st.just("zkgroups") | anything_json(),
    },
)
"""Valid and damaged registrations."""
