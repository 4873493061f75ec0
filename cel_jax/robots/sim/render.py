"""Offscreen rendering of the cameras. GL is opened by the first `CameraRenderer`, never by an import of this module.

The views are those after the paper's preprocessing (Table 4, phone packaging): the head image, 400 x 640, is squeezed
to a square without a crop; the wrist images, 1056 x 1280, are cropped to rows 192..864 and columns 304..976, which is a
centred square, so that a narrower lens (`scene.wrist_crop_fovy_deg`) renders it directly.
"""

from __future__ import annotations

import importlib
import os

import numpy as np

from cel_jax.robots.sim.engine import mujoco

SQUEEZE = 640 / 400  # width over height of the head camera's full image
GL_HELP = (
    "no offscreen GL for MuJoCo (MUJOCO_GL={backend}). Install the Debian packages libegl1 libegl-mesa0 "
    "libgl1-mesa-dri (or libosmesa6 with MUJOCO_GL=osmesa), or use observation mode 'state', which renders nothing."
)


class GLMissing(RuntimeError):
    """Offscreen rendering is not available on this machine."""


class CameraRenderer:
    """Renders any robot instance's cameras at one size. One per process is enough: see `shared_renderer`."""

    def __init__(self, model, image_px: int) -> None:  # type: ignore[no-untyped-def]
        self.image_px = image_px
        self._gl = _open_gl(image_px)
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_50)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._scene = mujoco.MjvScene(model, maxgeom=200)
        self._scene.flags[:] = 0
        self._option = mujoco.MjvOption()
        self._rect = mujoco.MjrRect(0, 0, image_px, image_px)

    def render(self, model, data, camera_name: str) -> np.ndarray:  # type: ignore[no-untyped-def]
        """uint8 [image_px, image_px, 3] of the named camera."""
        camera = mujoco.MjvCamera()
        camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        camera.fixedcamid = model.camera(camera_name).id
        mujoco.mjv_updateScene(model, data, self._option, None, camera, int(mujoco.mjtCatBit.mjCAT_ALL), self._scene)
        if camera_name == "head":
            self._squeeze()
        image = np.empty((self.image_px, self.image_px, 3), np.uint8)
        self._gl.make_current()
        mujoco.mjr_render(self._rect, self._scene, self._context)
        mujoco.mjr_readPixels(image, None, self._rect, self._context)
        return np.ascontiguousarray(image[::-1])

    def _squeeze(self) -> None:
        """Widens the frustum: a square picture of a view 1.6 times as wide as high."""
        for eye in self._scene.camera:
            eye.frustum_width = SQUEEZE * (eye.frustum_top - eye.frustum_bottom) / 2

    def close(self) -> None:
        """Frees the GL context."""
        self._context.free()
        self._gl.free()


_RENDERERS: dict[int, CameraRenderer] = {}


def shared_renderer(model, image_px: int) -> CameraRenderer:  # type: ignore[no-untyped-def]
    """The process's renderer of this size (the scenes of all robot instances have the same structure)."""
    if image_px not in _RENDERERS:
        _RENDERERS[image_px] = CameraRenderer(model, image_px)
    return _RENDERERS[image_px]


def _open_gl(image_px: int):  # type: ignore[no-untyped-def]
    """A current GL context by the backend of MUJOCO_GL (egl unless told otherwise)."""
    backend = os.environ.setdefault("MUJOCO_GL", "egl").lower().strip()
    if backend not in ("egl", "osmesa", "glfw"):
        raise GLMissing(f"MUJOCO_GL={backend}: expected egl, osmesa or glfw for observation mode 'images'")
    try:
        gl = importlib.import_module(f"mujoco.{backend}").GLContext(image_px, image_px)
        gl.make_current()
    except Exception as error:
        raise GLMissing(GL_HELP.format(backend=backend)) from error
    return gl
