"""Why an expression cannot be evaluated."""

from __future__ import annotations


class ExpressionError(ValueError):
    """An expression that cannot be evaluated."""


class BrokenExpressionError(ExpressionError):
    """Java refuses the expression."""


class UnevaluableExpressionError(ExpressionError):
    """Java may accept the expression, but only Java can evaluate it."""
