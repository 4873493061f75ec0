"""The import arrows of the house: a package imports only what lies below it, and the robot side stays light."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RANK = {
    "data": 0,
    "bus": 1,
    "replay": 2,
    "models": 2,
    "robots": 3,
    "fert": 3,
    "recovery": 3,
    "workers": 4,
    "console": 4,
    "evaluation": 4,
    "initialization": 4,
    "baselines": 4,
    "planner": 4,
    "study": 5,
}
LIGHT = {"data", "bus", "replay", "robots", "recovery", "console"}
HEAVY = {"jax", "jaxlib", "flax", "optax", "orbax", "tensorflow"}
# `replay` holds the one Reverb table; it imports reverb inside the functions that need it.
SAME_RANK_ALLOWED = {("initialization", "evaluation"), ("planner", "evaluation"), ("workers", "console")}


def _modules(path: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names


def _sources() -> list[tuple[str, Path]]:
    return [(path.relative_to(ROOT / "cel_jax").parts[0], path) for path in sorted((ROOT / "cel_jax").rglob("*.py"))]


@pytest.mark.parametrize("package,path", [(p, f) for p, f in _sources() if p in RANK], ids=lambda value: str(value))
def test_arrows_point_down(package: str, path: Path) -> None:
    for module in _modules(path):
        parts = module.split(".")
        if parts[0] in {"launch", "configs", "tests", "bench"}:
            raise AssertionError(f"{path}: imports {module}; nothing under cel_jax may import {parts[0]}")
        if parts[0] != "cel_jax" or len(parts) < 2 or parts[1] not in RANK or parts[1] == package:
            continue
        allowed = RANK[parts[1]] < RANK[package] or (package, parts[1]) in SAME_RANK_ALLOWED
        assert allowed, f"{path}: {package} imports {module}, which does not lie below it"


@pytest.mark.parametrize("path", [f for p, f in _sources() if p in LIGHT], ids=str)
def test_robot_side_stays_light(path: Path) -> None:
    heavy = HEAVY & {module.split(".")[0] for module in _modules(path)}
    assert not heavy, f"{path}: imports {sorted(heavy)}; bus, data, replay, robots and recovery run without them"
