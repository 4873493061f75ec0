"""Control code can call skills, branch and loop; it cannot leave its sandbox or stop the run."""

from __future__ import annotations

from typing import Any

import pytest

from cel_jax.planner.sandbox import CodeResult, run_code

MEMORY_BYTES = 256 * 1024 * 1024


def run(code: str, cpu_s: float = 2.0, deadline_s: float = 30.0) -> tuple[CodeResult, list[tuple]]:
    calls: list[tuple] = []

    def skill(name: str, args: list[Any], kwargs: Any) -> str:
        calls.append((name, *args, *sorted(kwargs.items())))
        if args == ["refused"]:
            raise ValueError("no such part")
        return f"did {name}"

    return run_code(code, ("pick", "place"), skill, cpu_s, MEMORY_BYTES, deadline_s), calls


def test_code_calls_skills_in_order_and_sees_their_answers() -> None:
    code = (
        'for part in ["a", "b"]:\n    said = pick(part, arm="left")\n    if said == "did pick":\n        place(part)\n'
    )
    result, calls = run(code)
    assert result.error == ""
    assert calls == [("pick", "a", ("arm", "left")), ("place", "a"), ("pick", "b", ("arm", "left")), ("place", "b")]


@pytest.mark.parametrize(
    "code",
    [
        "import os", "open('/etc/passwd')", "().__class__", "__import__('os')", "exec('1')", "eval('1')",
        "def f():\n    pass", "lambda: 0", "x = [1].append", "pick.__globals__", "f'{1}'", "with x:\n    pass",
        "class A:\n    pass", "globals()", "getattr(pick, 'a')", "try:\n    pick()\nexcept:\n    pass",
    ],
)  # fmt: skip
def test_whatever_could_escape_is_refused_by_name(code: str) -> None:
    result, calls = run(code)
    assert result.error and not calls


@pytest.mark.parametrize(
    "code", ["while True:\n    pass", "x = 'a' * 10000 * 10000", "x = [0]\nwhile True:\n    x = x + x", "9**9**9**9"]
)
def test_endless_and_huge_code_ends_with_an_error(code: str) -> None:
    assert run(code)[0].error


def test_a_refused_skill_is_the_codes_error_and_what_came_before_has_happened() -> None:
    result, calls = run('pick("a")\npick("refused")\nplace("never")')
    assert "no such part" in result.error and calls == [("pick", "a"), ("pick", "refused")]
