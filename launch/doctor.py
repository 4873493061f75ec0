"""Checks what a run needs before it starts, and says what to install. `python -m launch.doctor`"""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

GL_PACKAGES = {"egl": "libegl1 libegl-mesa0 libgl1-mesa-dri", "osmesa": "libosmesa6"}
GL_LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa"}
ROOT = Path(__file__).resolve().parent.parent


def gl_problem() -> str | None:
    """Why MuJoCo cannot render here, or None."""
    backend = os.environ.get("MUJOCO_GL", "egl")
    library = GL_LIBRARIES.get(backend)
    if library is None or ctypes.util.find_library(library):
        return None
    return (
        f"rendering needs {library} (MUJOCO_GL={backend}): apt-get install -y {GL_PACKAGES[backend]}; "
        "or run the configuration without images: --config=phone_packaging_state"
    )


def install_gl() -> None:
    """Installs the GL libraries where this user may; else leaves it to the message."""
    if gl_problem() is None or os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    packages = GL_PACKAGES[os.environ.get("MUJOCO_GL", "egl")].split()
    print("installing " + " ".join(packages), flush=True)
    subprocess.run(["apt-get", "install", "-y", "-qq", *packages], check=False, stdout=subprocess.DEVNULL)


def reverb_python() -> str | None:
    """The interpreter of the store's environment where Reverb is installed, else None."""
    python = ROOT / ".venv-reverb" / "bin" / "python"
    return str(python) if python.exists() else None


def main() -> int:
    install_gl()
    problem = gl_problem()
    missing = [name for name in ("jax", "flax", "mujoco", "zmq") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"missing packages {missing}: run `make setup`", file=sys.stderr)
        return 1
    print(f"environment ok; replay table: {'reverb' if reverb_python() else 'memory (no Reverb here)'}")
    if problem:
        print(problem, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
