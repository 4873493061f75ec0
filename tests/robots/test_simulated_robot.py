"""The simulated robot: its shapes, limits, determinism, differences, and that nothing teleports."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import numpy as np
import pytest

from cel_jax.robots import tasks
from cel_jax.robots.protocol import Robot, RobotError
from cel_jax.robots.sim.calibration import CAMERAS, draw_calibration
from cel_jax.robots.sim.render import GLMissing
from cel_jax.robots.sim.world import PackagingWorld, TaskParams

SHORT = {"robot_seed": 7, "mode": "state"}


@pytest.fixture(scope="module")
def robot():  # type: ignore[no-untyped-def]
    robot = tasks.make_robot("phone_packaging", **SHORT)
    robot.connect()
    yield robot
    robot.disconnect()


def _play(world: PackagingWorld, seed: int, steps: int) -> np.ndarray:
    world.reset(seed)
    expert = tasks.make_expert(world, "ada", seed)
    trace = []
    for _ in range(steps):
        world.step(expert.act())
        seen = world.observe()
        trace.append(np.concatenate([seen.state, world.objects().ravel()]))
    return np.array(trace)


def test_fits_the_protocol(robot) -> None:  # type: ignore[no-untyped-def]
    assert isinstance(robot, Robot)
    assert robot.robot_id == "sim-0007" and len(robot.calibration_hash) == 16


def test_state_mode_shapes_and_scale(robot) -> None:  # type: ignore[no-untyped-def]
    robot.reset(0)
    seen, features = robot.get_observation(), robot.features
    assert seen.images == {} and features.cameras == ()
    assert seen.state.shape == (16,) and seen.state.dtype == np.float32
    assert seen.objects.shape == features.objects_shape == (7, 15) and seen.objects.dtype == np.float32
    assert np.abs(seen.objects).max() < 5.0
    columns = seen.objects[:, 3:9].reshape(7, 2, 3)
    np.testing.assert_allclose(np.linalg.norm(columns, axis=-1), 1.0, atol=1e-5)
    assert features.delta_mask == tuple(i not in (7, 15) for i in range(16)) and features.fps_hz == 30.0


@pytest.mark.parametrize("px", [64, 96])
def test_image_mode_shapes_and_rendering_only_when_asked(px: int) -> None:
    robot = tasks.make_robot("phone_packaging", robot_seed=1, mode="images", image_px=px)
    robot.connect()
    robot.reset(0)
    assert robot.get_observation(with_images=False).images == {}
    seen = robot.get_observation()
    assert tuple(seen.images) == CAMERAS == robot.features.camera_names and seen.objects is None
    for image in seen.images.values():
        assert image.shape == (px, px, 3) and image.dtype == np.uint8 and image.std() > 15
    robot.disconnect()


def test_robots_look_different_and_one_renderer_serves_them() -> None:
    worlds = [PackagingWorld(i, "images", TaskParams(image_px=64)) for i in (1, 2)]
    for world in worlds:
        world.reset(0)
    first = [world.observe().images["head"] for world in worlds]
    again = worlds[0].observe().images["head"]
    np.testing.assert_array_equal(first[0], again)
    assert np.abs(first[0].astype(int) - first[1]).mean() > 2


def test_same_seed_same_trajectory_after_other_episodes() -> None:
    world = PackagingWorld(3)
    first = _play(world, 11, 150)
    _play(world, 12, 40)
    np.testing.assert_array_equal(_play(world, 11, 150), first)
    np.testing.assert_array_equal(_play(PackagingWorld(3), 11, 150), first)


def test_the_scene_is_the_seed_s_and_the_robot_is_its_own() -> None:
    a, b = PackagingWorld(1), PackagingWorld(2)
    a.reset(5), b.reset(5)
    np.testing.assert_allclose(a.facts.position, b.facts.position, atol=2e-3)
    assert np.abs(a.observe().state - b.observe().state).max() > 1e-3
    b.reset(6)
    assert np.abs(a.facts.position - b.facts.position).max() > 5e-3


def test_pose_range_zero_is_the_nominal_scene() -> None:
    world = PackagingWorld(1, "state", TaskParams(pose_range=0.0))
    world.reset(1)
    first = world.facts.position
    world.reset(2)
    np.testing.assert_array_equal(world.facts.position, first)


def test_calibrations_differ_and_are_reproducible() -> None:
    drawn = [draw_calibration(seed) for seed in (*range(50), -3, 10**9)]
    assert len({c.hash for c in drawn}) == len(drawn) and draw_calibration(4) == drawn[4]
    offsets = np.array([c.encoder_offset_rad for c in drawn])
    assert 0.003 < offsets.std() < 0.0042
    assert dataclasses.replace(drawn[0], light_scale=2.0).hash != drawn[0].hash


def test_the_encoder_reads_with_its_offset(robot) -> None:  # type: ignore[no-untyped-def]
    robot.reset(0)
    physics = robot.world.physics
    true = physics.data.qpos[physics.joint_qpos]
    read = physics.state()[[i for i in range(16) if i not in (7, 15)]]
    np.testing.assert_allclose(read - true, robot.world.calibration.encoder_offset_rad, atol=1e-6)


def test_actions_are_limited_and_what_was_executed_is_returned(robot) -> None:  # type: ignore[no-untyped-def]
    robot.reset(0)
    before = robot.get_observation().state
    sent = robot.send_action(before + 5.0)
    assert sent.dtype == np.float32 and np.abs(sent - before)[:7].max() < 0.13
    for _ in range(60):
        last, sent = sent, robot.send_action(np.full(16, 99.0))
        assert np.abs(sent - last).max() <= 0.2 + 1e-5


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_is_refused_and_the_robot_goes_on(robot, bad: float) -> None:  # type: ignore[no-untyped-def]
    robot.reset(0)
    before = robot.get_observation().state.copy()
    action = before.copy()
    action[3] = bad
    with pytest.raises(RobotError, match=r"sim-0007.*\[3\]"):
        robot.send_action(action)
    np.testing.assert_array_equal(robot.get_observation().state, before)
    robot.send_action(before)


def test_use_before_reset_is_refused() -> None:
    robot = tasks.make_robot("phone_packaging", **SHORT)
    assert robot.verdict() is None and robot.stage() == -1
    with pytest.raises(RobotError, match="connect"):
        robot.reset(0)
    robot.connect()
    with pytest.raises(RobotError, match="before reset"):
        robot.send_action(np.zeros(16))
    robot.disconnect()
    robot.disconnect()


def test_wild_actions_keep_the_world_finite_and_nothing_teleports() -> None:
    world, rng = PackagingWorld(2), np.random.default_rng(0)
    world.reset(3)
    action = world.observe().state.astype(np.float64)
    last = world.facts.position
    for _ in range(150):
        action = action + rng.normal(0.0, 0.06, 16)
        action = world.step(action).astype(np.float64)
        assert np.isfinite(world.facts.position).all()
        assert np.linalg.norm(world.facts.position - last, axis=1).max() < 0.12  # 3.6 m/s in one period
        last = world.facts.position


def test_parts_rest_after_reset() -> None:
    world = PackagingWorld(5)
    for seed in range(12):
        world.reset(seed)
        hold = world.observe().state
        start = world.facts.position
        for _ in range(15):
            world.step(hold)
        assert np.abs(world.facts.position - start).max() < 1.5e-3, seed
        assert world.facts.speed.max() < 0.02


def _python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **env},
        check=False,
    )


STATE_RUN = """
import sys
from cel_jax.robots.tasks import make_robot, make_expert
robot = make_robot("phone_packaging", robot_seed=1, mode="state")
robot.connect(); robot.reset(0)
expert = make_expert(robot.world, "exact", 0)
for _ in range(5):
    robot.send_action(expert.act()); robot.get_observation()
bad = [m for m in sys.modules if m.startswith(("OpenGL", "mujoco.egl", "mujoco.osmesa", "glfw", "jax"))]
assert not bad, bad
"""


@pytest.mark.parametrize("backend", ["egl", "osmesa", ""])
def test_state_mode_never_touches_gl_nor_jax(backend: str) -> None:
    env = {"MUJOCO_GL": backend} if backend else {}
    done = _python(STATE_RUN, **env, PYOPENGL_PLATFORM="egl")
    assert done.returncode == 0, done.stderr


def test_missing_gl_names_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    from cel_jax.robots.sim import render

    def missing(name: str):  # type: ignore[no-untyped-def]
        raise ImportError("libEGL.so.1: cannot open shared object file")

    monkeypatch.setattr(render, "_RENDERERS", {})
    monkeypatch.setattr(render.importlib, "import_module", missing)
    robot = tasks.make_robot("phone_packaging", robot_seed=1, mode="images")
    with pytest.raises(GLMissing, match="libegl1 libegl-mesa0 libgl1-mesa-dri"):
        robot.connect()


def test_unknown_task_and_mode_are_named() -> None:
    with pytest.raises(ValueError, match="did you mean 'phone_packaging'"):
        tasks.make_task("phone_packing")
    with pytest.raises(ValueError, match=r"images.*state"):
        tasks.make_robot("phone_packaging", robot_seed=1, mode="pixels")


def test_real_time_keeps_the_control_rate() -> None:
    import time

    robot = tasks.make_robot("phone_packaging", robot_seed=1, mode="state", real_time=True)
    robot.connect()
    robot.reset(0)
    hold = robot.get_observation().state
    start = time.monotonic()
    for _ in range(9):
        robot.send_action(hold)
    assert time.monotonic() - start > 0.26
