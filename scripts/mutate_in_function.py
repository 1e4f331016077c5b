"""Change functions that are already imported, so that a test of a change needs no new Python process."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator
from types import CodeType, FunctionType


def change_functions(path: str, source: bytes, changed: bytes) -> bool:
    """Give the functions of a file the code of the changed source. Return False if they must be imported for that."""
    pairs = dict(_pairs(_compiled(path, source), _compiled(path, changed)))
    found = (each for each in gc.get_objects() if isinstance(each, FunctionType))
    functions = [each for each in found if each.__code__.co_filename == path and each.__code__ in pairs]
    try:
        for function in functions:
            function.__code__ = pairs[function.__code__]
    except ValueError:  # another number of variables of the surrounding function
        return False
    _forget_results()
    return bool(functions)


def _compiled(path: str, source: bytes) -> CodeType:
    return compile(source, path, "exec", dont_inherit=True)


def _pairs(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Yield the old and the new code of all functions, also of those inside of others."""
    before, after = ([each for each in code.co_consts if isinstance(each, CodeType)] for code in (old, new))
    for one, other in zip(before, after, strict=False):
        if one.co_name == other.co_name:
            yield one, other
            yield from _pairs(one, other)


def _forget_results() -> None:
    """Empty caches: they hold results of the unchanged code."""
    for each in gc.get_objects():
        if isinstance(each, functools._lru_cache_wrapper) and (each.__module__ or "").startswith("zkgroups"):
            each.cache_clear()
