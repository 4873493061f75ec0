"""Environments with the real clients of other projects, so that ours need not hold their requirements."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile

import pytest


def client_python(variable: str, module: str, *packages: str) -> str:
    """An interpreter that imports `module`: the environment variable's, or one made once in a folder of its own.

    Skips the test where the packages cannot be installed.
    """
    if named := os.environ.get(variable):
        return named
    folder = pathlib.Path(tempfile.gettempdir()) / f"cel-client-{packages[0]}-{os.getuid()}"
    python = folder / "bin" / "python"
    if not _imports(python, module):
        install = [str(python), "-m", "pip", "install", "-q", *packages]
        for command in ([sys.executable, "-m", "venv", str(folder)], install):
            done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
            if done.returncode:
                pytest.skip(f"{packages[0]} cannot be installed here: {done.stderr[-200:]}; set {variable}")
    return str(python)


def _imports(python: pathlib.Path, module: str) -> bool:
    command = [str(python), "-c", f"import {module}"]
    return python.exists() and subprocess.run(command, capture_output=True, check=False).returncode == 0
