"""The small changes of a Python file that could alter what it does.

Left out, because no test should detect them: types, decorators, assertions (also `strict` of `zip`), texts of errors,
lines of logs, `__repr__`, and constants of modules that are plain numbers (limits and durations, set by measurement).
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_OPPOSITE: Final[dict[type[ast.cmpop], str]] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
_NEGATED_AS_COMPARISON: Final = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)


@dataclass(frozen=True, slots=True)
class Change:
    """Replace the text from `start` to `end`, as (line, byte in the line), of a file."""

    file: str
    start: tuple[int, int]
    end: tuple[int, int]
    text: str
    scope: str
    """The function or class."""
    lines: tuple[int, int]
    """The first and the last line of the statement: a test that runs none of them cannot detect the change."""
    in_function: bool
    """False if the code runs when the module is imported."""
    old: str
    new: str
    """The changed lines without indentation."""
    repeated: int
    """How many equal changes come before this one in the same function."""

    def made_in(self, source: bytes) -> bytes:
        """Return the changed source."""
        lines = source.splitlines(keepends=True)
        (first, left), (last, right) = self.start, self.end
        changed = lines[first - 1][:left] + self.text.encode() + lines[last - 1][right:]
        return b"".join([*lines[: first - 1], changed, *lines[last:]])


def _stripped(text: bytes) -> str:
    return "\n".join(line.strip() for line in text.decode().strip().splitlines())


@dataclass(frozen=True, slots=True)
class _Place:
    names: tuple[str, ...] = ()
    in_function: bool = False
    statement: ast.stmt | None = None


def changes(file: str, source: str) -> Iterator[Change]:
    """Yield all changes of a file."""
    seen: Counter[tuple[str, str, str]] = Counter()
    lines = source.encode().splitlines(keepends=True)
    for node, place in _walk(ast.parse(source), _Place()):
        for target, text in _replacements(node):
            assert target.end_lineno is not None
            assert target.end_col_offset is not None
            old = b"".join(lines[target.lineno - 1 : target.end_lineno])
            rest = lines[target.end_lineno - 1][target.end_col_offset :]
            new = lines[target.lineno - 1][: target.col_offset] + text.encode() + rest
            key = (".".join(place.names), _stripped(old), _stripped(new))
            yield Change(
                file=file,
                start=(target.lineno, target.col_offset),
                end=(target.end_lineno, target.end_col_offset),
                text=text,
                scope=key[0],
                lines=_lines(target, place.statement),
                in_function=place.in_function,
                old=key[1],
                new=key[2],
                repeated=seen[key],
            )
            seen[key] += 1


def _lines(target: ast.expr | ast.stmt, statement: ast.stmt | None) -> tuple[int, int]:
    """Return the lines of a simple statement, or of the head of a compound one up to the change."""
    assert statement is not None
    last = target.end_lineno if hasattr(statement, "body") else statement.end_lineno
    assert last is not None
    return min(statement.lineno, target.lineno), last


def _walk(node: ast.AST, place: _Place) -> Iterator[tuple[ast.AST, _Place]]:
    """Yield the nodes that are executed, and where they are."""
    if isinstance(node, ast.stmt):
        place = _Place(place.names, place.in_function, node)
    if _is_left_out(node, place):
        return
    yield node, place
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list", "exc"} or isinstance(node, ast.JoinedStr):
            continue
        inner = _inside(node, place) if name == "body" else place
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _walk(child, inner)


def _inside(node: ast.AST, place: _Place) -> _Place:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return _Place((*place.names, node.name), True, place.statement)
        case ast.ClassDef():
            return _Place((*place.names, node.name), place.in_function, place.statement)
        case ast.Lambda():
            return _Place(place.names, True, place.statement)
    return place


def _is_left_out(node: ast.AST, place: _Place) -> bool:
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Assert() | ast.FunctionDef(name="__repr__"):
            return True
        case ast.Subscript(value=ast.Name(id="Callable")) | ast.keyword(arg="strict"):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
            return name.lower().endswith(("log", "logger"))
        case ast.AnnAssign(annotation=annotation, value=ast.expr() as value):
            return not place.names and "Final" in ast.unparse(annotation) and _is_numeric(value)
    return False


def _is_numeric(value: ast.expr) -> bool:
    match value:
        case ast.BinOp(left=left, right=right):
            return _is_numeric(left) and _is_numeric(right)
        case ast.Constant(value=number):
            return isinstance(number, int | float) and not isinstance(number, bool)
    return False


def _replacements(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    match node:
        case ast.Expr(value=ast.Call()) | ast.Raise() | ast.AugAssign() | ast.Delete():
            yield node, "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield node, "pass"
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) | ast.comprehension(ifs=[test, *_]):
            yield from _negated(test)
        case ast.match_case(guard=ast.expr() as test):
            yield from _negated(test)
        case ast.expr():
            yield from ((node, text) for text in _other_values(node))


def _negated(test: ast.expr) -> Iterator[tuple[ast.expr, str]]:
    """Negate a condition, unless `_other_values` does it: `not (a == b)` is `a != b`."""
    match test:
        case ast.Compare(ops=[op]) if isinstance(op, _NEGATED_AS_COMPARISON):
            return
    yield test, f"(not ({ast.unparse(test)}))"


def _other_values(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPPOSITE:
            yield f"({ast.unparse(left)} {_OPPOSITE[type(op)]} {ast.unparse(right)})"
        case ast.BoolOp(op=op, values=values):
            word = " and " if isinstance(op, ast.Or) else " or "
            yield "(" + word.join(f"({ast.unparse(value)})" for value in values) + ")"
        case ast.Constant(value=bool(value)):
            yield str(not value)
        case ast.Constant(value=int(value)):
            yield str(value + 1)
        case ast.List(elts=[_, _, *_] as elements, ctx=ast.Load()):  # for example the guards of a transaction
            for element in elements:
                yield "[" + ", ".join(ast.unparse(each) for each in elements if each is not element) + "]"
