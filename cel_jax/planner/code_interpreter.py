"""An interpreter of a small Python: calls of skills, names, numbers, texts, lists, conditions and loops.

Code is parsed, checked and walked; it is never handed to Python. There are no imports, attributes, definitions or
builtins beyond `FUNCTIONS`, so there is nothing to escape with. Standard library only: it runs alone in the sandbox.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

MAX_STEPS = 20_000
MAX_SIZE = 10_000  # of a text or a list
MAX_NUMBER = 10**12
MAX_CODE_CHARACTERS = 20_000

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "len": len, "range": lambda *a: list(range(*a))[:MAX_SIZE] if all(abs(x) <= MAX_SIZE for x in a) else _too_large(),
    "str": str, "int": int, "min": min, "max": max, "sorted": sorted, "abs": abs,
}  # fmt: skip
_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv, ast.Mod: lambda a, b: a % b if isinstance(a, (int, float)) else _no_format(),
}  # fmt: skip
_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip
_ALLOWED = (
    ast.Module, ast.Expr, ast.Assign, ast.AugAssign, ast.If, ast.For, ast.While, ast.Break, ast.Continue, ast.Pass,
    ast.Call, ast.keyword, ast.Name, ast.Load, ast.Store, ast.Constant, ast.List, ast.Tuple, ast.Subscript, ast.BinOp,
    ast.UnaryOp, ast.Not, ast.USub, ast.BoolOp, ast.And, ast.Or, ast.Compare, ast.IfExp, *_BINARY, *_COMPARE,
)  # fmt: skip


class CodeError(ValueError):
    """Code that is not allowed or that failed; the message can be shown to the planner."""


class _Break(Exception):
    pass


class _Continue(Exception):
    pass


def _too_large() -> Any:
    raise CodeError("a value grew too large")


def _no_format() -> Any:
    raise CodeError("% works on numbers only")


def parse(code: str) -> ast.Module:
    """The checked tree. Raises CodeError naming the line and what is not allowed."""
    if len(code) > MAX_CODE_CHARACTERS:
        raise CodeError(f"{len(code)} characters of code; at most {MAX_CODE_CHARACTERS} are allowed")
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise CodeError(f"this is not Python: {error}") from error
    for node in ast.walk(tree):
        _check(node)
    return tree


def _check(node: ast.AST) -> None:
    line = getattr(node, "lineno", "?")
    if not isinstance(node, _ALLOWED):
        raise CodeError(f"line {line}: {type(node).__name__} is not allowed; call skills, branch and loop only")
    if isinstance(node, ast.Name) and node.id.startswith("_"):
        raise CodeError(f"line {line}: names that begin with _ are not allowed")
    if isinstance(node, ast.Call) and not isinstance(node.func, ast.Name):
        raise CodeError(f"line {line}: only functions called by name are allowed")
    if isinstance(node, ast.Constant) and not isinstance(node.value, (str, int, float, bool, type(None))):
        raise CodeError(f"line {line}: {type(node.value).__name__} values are not allowed")


class Interpreter:
    """Runs code against skills: name -> function of keyword or positional texts. `printed` collects `print`."""

    def __init__(self, skills: dict[str, Callable[..., Any]]) -> None:
        self.printed: list[str] = []
        self._functions = {**FUNCTIONS, "print": self._print, **skills}
        self._names: dict[str, Any] = {}
        self._steps = 0

    def run(self, code: str) -> None:
        """Raises CodeError for what is not allowed, failed or did not end."""
        try:
            self._block(parse(code).body)
        except CodeError:
            raise
        except (_Break, _Continue):
            raise CodeError("break or continue outside a loop") from None
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
            RecursionError,
            MemoryError,
        ) as error:
            raise CodeError(f"{type(error).__name__}: {error}") from error

    def _print(self, *values: Any) -> None:
        self.printed.append(" ".join(str(value) for value in values)[:MAX_SIZE])
        if len(self.printed) > 200:
            raise CodeError("more than 200 lines were printed")

    def _block(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self._tick(statement)
            self._statement(statement)

    def _tick(self, node: ast.AST) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise CodeError(f"the code did not end within {MAX_STEPS} steps")

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Expr):
            self._value(node.value)
        elif isinstance(node, ast.Assign):
            value = self._value(node.value)
            for target in node.targets:
                self._store(target, value)
        elif isinstance(node, ast.AugAssign):
            self._store(node.target, self._binary(type(node.op), self._load(node.target), self._value(node.value)))
        elif isinstance(node, ast.If):
            self._block(node.body if self._value(node.test) else node.orelse)
        elif isinstance(node, (ast.For, ast.While)):
            self._loop(node)
        elif isinstance(node, ast.Break):
            raise _Break
        elif isinstance(node, ast.Continue):
            raise _Continue

    def _loop(self, node: ast.For | ast.While) -> None:
        turns = iter(list(self._value(node.iter))) if isinstance(node, ast.For) else None
        while True:
            self._tick(node)
            if turns is not None:
                value = next(turns, _END)
                if value is _END:
                    break
                self._store(node.target, value)  # type: ignore[union-attr]
            elif not self._value(node.test):  # type: ignore[union-attr]
                break
            try:
                self._block(node.body)
            except _Break:
                return
            except _Continue:
                continue
        self._block(node.orelse)

    def _store(self, target: ast.expr, value: Any) -> None:
        if not isinstance(target, ast.Name):
            raise CodeError(f"line {target.lineno}: only plain names can be assigned")
        self._names[target.id] = value

    def _load(self, node: ast.expr) -> Any:
        if not isinstance(node, ast.Name) or node.id not in self._names:
            raise CodeError(f"line {node.lineno}: the name {getattr(node, 'id', '?')!r} is not defined")
        return self._names[node.id]

    def _value(self, node: ast.expr) -> Any:
        self._tick(node)
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self._load(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, (ast.List, ast.Tuple)):
            return [self._value(item) for item in node.elts]
        if isinstance(node, ast.Subscript):
            return self._value(node.value)[self._value(node.slice)]
        if isinstance(node, ast.IfExp):
            return self._value(node.body if self._value(node.test) else node.orelse)
        return self._operation(node)

    def _operation(self, node: ast.expr) -> Any:
        if isinstance(node, ast.BinOp):
            return self._binary(type(node.op), self._value(node.left), self._value(node.right))
        if isinstance(node, ast.UnaryOp):
            value = self._value(node.operand)
            return not value if isinstance(node.op, ast.Not) else -value
        if isinstance(node, ast.BoolOp):
            return self._boolean(node)
        if isinstance(node, ast.Compare):
            return self._comparison(node)
        raise CodeError(f"line {node.lineno}: {type(node).__name__} is not allowed")

    def _binary(self, kind: type, left: Any, right: Any) -> Any:
        if kind is ast.Mult and not (isinstance(left, (int, float)) and isinstance(right, (int, float))):
            raise CodeError("* works on numbers only")
        value = _BINARY[kind](left, right)
        size = len(value) if isinstance(value, (str, list)) else 0
        large = isinstance(value, (int, float)) and abs(value) > MAX_NUMBER
        return _too_large() if size > MAX_SIZE or large else value

    def _boolean(self, node: ast.BoolOp) -> Any:
        stop_at = isinstance(node.op, ast.Or)
        value: Any = None
        for part in node.values:
            value = self._value(part)
            if bool(value) == stop_at:
                break
        return value

    def _comparison(self, node: ast.Compare) -> bool:
        left = self._value(node.left)
        for kind, part in zip(node.ops, node.comparators):  # noqa: B905
            right = self._value(part)
            if not _COMPARE[type(kind)](left, right):
                return False
            left = right
        return True

    def _call(self, node: ast.Call) -> Any:
        assert isinstance(node.func, ast.Name)
        function = self._functions.get(node.func.id)
        if function is None:
            raise CodeError(f"line {node.lineno}: there is no function {node.func.id!r}")
        if any(keyword.arg is None for keyword in node.keywords):
            raise CodeError(f"line {node.lineno}: ** is not allowed")
        return function(*map(self._value, node.args), **{str(k.arg): self._value(k.value) for k in node.keywords})


_END = object()
