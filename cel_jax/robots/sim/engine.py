"""Imports MuJoCo without opening GL. Every module of the simulation takes `mujoco` from here.

`import mujoco` opens an EGL display at once when MUJOCO_GL=egl. In `state` mode nothing may touch GL, and a machine
without GL must still simulate, so the import happens with GL switched off; `render.py` opens GL by itself.
"""

from __future__ import annotations

import os
import sys


def _import_without_gl():  # type: ignore[no-untyped-def]
    if "mujoco" in sys.modules:
        return sys.modules["mujoco"]
    before = os.environ.get("MUJOCO_GL")
    os.environ["MUJOCO_GL"] = "disable"
    try:
        import mujoco
    finally:
        if before is None:
            del os.environ["MUJOCO_GL"]
        else:
            os.environ["MUJOCO_GL"] = before
    return mujoco


mujoco = _import_without_gl()
