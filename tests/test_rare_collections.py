"""Fewer searches for garbage during a step."""

from __future__ import annotations

import gc

from zkgroups.rare_collections import rare_collections


def test_the_threshold_is_raised_until_the_last_of_several_blocks_ends() -> None:
    usual = gc.get_threshold()
    first, second = rare_collections(), rare_collections()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold()[0] > usual[0]
    second.__exit__(None, None, None)
    assert gc.get_threshold() == usual
