"""A fresh clone imports what its requirements install: every package imported at the top of a module is pinned.

A package installed by hand into a working environment hides its absence from `requirements/` until somebody else
clones; here the imports are compared with the lists, whatever happens to be installed.
"""

import ast
import re
import sys
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OWN = {path.name.removesuffix(".py") for path in ROOT.iterdir()}
FOLDERS = ("cel_jax", "launch", "configs", "bench", "tests")
# Run by the interpreter of an environment of their own, which the test or benchmark that starts them makes.
ELSEWHERE = re.compile(r"_check\.py$|/fixtures/make_")
# The one package that is never installed beside the rest, so that its distribution cannot be looked up.
REVERB = {"reverb": ["dm-reverb"]}


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _pinned(list_name: str) -> set[str]:
    lines = (ROOT / "requirements" / list_name).read_text().splitlines()
    return {_canonical(re.split(r"[=<>\[ ]", line)[0]) for line in lines if line and line[0] not in "#-"}


def _installed_with(pinned: set[str]) -> set[str]:
    """The pinned distributions and all that installing them brings (extras left out)."""
    reached, todo = set(pinned), list(pinned)
    while todo:
        try:
            needs = metadata.requires(todo.pop()) or []
        except metadata.PackageNotFoundError:
            continue
        names = {_canonical(re.split(r"[^A-Za-z0-9._-]", need)[0]) for need in needs if "extra ==" not in need}
        todo.extend(names - reached)
        reached |= names
    return reached


def top_imports(source: str) -> set[str]:
    """The packages imported by statements of the module itself: not those in functions or `try`, which may fail."""
    found = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module.split(".")[0])
    return found - set(sys.stdlib_module_names) - OWN


def _imports_of_project() -> dict[str, str]:
    """Package to one file that imports it."""
    found = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if not ELSEWHERE.search(name):
                found |= dict.fromkeys(top_imports(path.read_text()), name)
    return found


def test_every_package_imported_at_the_top_of_a_module_is_pinned():
    provided = _installed_with(_pinned("jax.txt")) | _installed_with(_pinned("reverb.txt"))
    distributions = REVERB | dict(metadata.packages_distributions())
    missing = {
        package: file
        for package, file in _imports_of_project().items()
        if not {_canonical(name) for name in distributions.get(package, [package])} & provided
    }
    assert not missing, f"imported, but in no list of requirements/: {missing}"


@pytest.mark.parametrize("source", ["import gguf", "from gguf import reader", "import json, gguf.quants as q"])
def test_a_top_import_is_seen(source: str):
    assert top_imports(source) == {"gguf"}


@pytest.mark.parametrize("source", ["def f():\n    import gguf", "try:\n    import gguf\nexcept ImportError: pass"])
def test_an_import_that_may_fail_is_not(source: str):
    assert not top_imports(source)
