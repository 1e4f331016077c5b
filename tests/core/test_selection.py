"""Expressions that select groups and topics."""

from __future__ import annotations

import pytest

from zkgroups.core.selection import check_expression
from zkgroups.exceptions import InvalidOptionError


@pytest.mark.parametrize("expression", [None, "", "orders|bill.*"])
def test_an_expression_is_valid(expression: str | None) -> None:
    check_expression("groups", expression)


@pytest.mark.parametrize("expression", ["(", "*", "a{2,1}", "(" * 5000 + ")" * 5000])
def test_an_invalid_expression_is_an_error_with_the_option(expression: str) -> None:
    with pytest.raises(InvalidOptionError, match=r"^groups is .*it is not a regular expression: "):
        check_expression("groups", expression)
