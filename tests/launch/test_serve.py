"""launch.serve: openpi's protocol, answers equal to the policy's, and the real openpi-client against it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import pathlib
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import numpy as np
import pytest
import websockets

from cel_jax.config import PolicyConfig
from cel_jax.data.images import preprocess
from cel_jax.models.openpi_export import export_openpi
from cel_jax.models.presets import make_config
from cel_jax.models.saving import save_policy
from cel_jax.workers.serving import wire
from cel_jax.workers.serving.batching import Batcher, Busy, infer
from cel_jax.workers.serving.checkpoint import CheckpointError, load, openpi_policy
from cel_jax.workers.serving.observations import LAYOUTS, ObservationError, default_layout, read, robot_features
from cel_jax.workers.serving.server import PolicyServer
from tests.client_environment import client_python
from tests.models.robots import POLICY, features, norm_stats, observations, tiny, tiny_policy

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHECK = pathlib.Path(__file__).with_name("openpi_client_check.py")
CLIENT = "CEL_OPENPI_CLIENT_PYTHON"


def message(mode: str = "state") -> dict:
    states, images, objects, prompts = observations(mode, 1)
    shown = {f"observation/{name}": image[0] for name, image in images.items()}
    poses = {} if objects is None else {"observation/objects": objects[0]}
    return {"observation/state": states[0], "prompt": prompts[0]} | shown | poses


def request(mode: str = "state", **changes: object):  # type: ignore[no-untyped-def]
    robot = features(mode)
    return read(message(mode) | changes, default_layout(robot), robot, "")


def test_wire_is_openpis() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    data = wire.pack({"a": array, "n": np.float32(0.5), "t": "text", "deep": {"b": array.astype(np.uint8)}})
    for expected in (b"__ndarray__", b"<f4", b"__npgeneric__", b"|u1"):
        assert expected in data
    back = wire.unpack(data)
    np.testing.assert_array_equal(back["a"], array)
    assert back["n"] == 0.5 and back["t"] == "text" and back["deep"]["b"].dtype == np.uint8


@pytest.mark.parametrize("bad", [np.asarray([object()]), np.zeros(2, "c8"), np.zeros(2, "V4"), {1, 2}])
def test_wire_refuses_what_is_not_numbers(bad: object) -> None:
    with pytest.raises(wire.WireError, match="cannot"):
        wire.pack({"x": bad})


def test_wire_refuses_arrays_whose_length_lies() -> None:
    data = wire.pack(np.zeros(4, np.float32)).replace(b"\x91\x04", b"\x91\x05")
    with pytest.raises(wire.WireError, match="16 bytes"):
        wire.unpack(data)
    with pytest.raises(wire.WireError, match="not msgpack"):
        wire.unpack(b"\xc1")


def test_observations_are_fitted_or_refused_by_name() -> None:
    robot = features("images")
    layout = default_layout(robot)
    good = message("images")
    got = read(good, layout, robot, "")
    np.testing.assert_array_equal(got.images["wrist"], good["observation/wrist"])
    turned = read(good | {"observation/wrist": good["observation/wrist"].transpose(2, 0, 1)}, layout, robot, "")
    np.testing.assert_array_equal(turned.images["wrist"], good["observation/wrist"])
    larger = read(good | {"observation/head": np.full((48, 64, 3), 7, np.uint8)}, layout, robot, "")
    assert larger.images["head"].shape == (24, 32, 3) and (larger.images["head"] == 7).all()
    for change, complaint in (
        ({"observation/state": np.zeros(3)}, "expected 7 finite numbers"),
        ({"observation/state": np.full(7, np.nan)}, "finite"),
        ({"observation/head": np.zeros((24, 32), np.uint8)}, "observation/head: expected an image"),
        ({"observation/head": np.zeros((24, 32, 3), np.int32)}, "int32"),
        ({"observation/head": np.full((24, 32, 3), 9.0)}, r"0\.\.1"),
        ({"prompt": 3}, "prompt: expected text"),
    ):
        with pytest.raises(ObservationError, match=complaint):
            read(good | change, layout, robot, "")
    with pytest.raises(ObservationError, match="observation/head is missing"):
        read({"observation/state": np.zeros(7)}, layout, robot, "")


def test_full_images_of_the_papers_cameras_are_cropped_as_in_training() -> None:
    robot = features("images")
    robot = dataclasses.replace(
        robot, cameras=tuple(dataclasses.replace(c, height=32, width=32) for c in robot.cameras)
    )
    picture = np.random.default_rng(0).integers(0, 256, (1056, 1280, 3), np.uint8)
    sent = message("images") | {"observation/wrist": picture, "observation/head": np.zeros((32, 32, 3), np.uint8)}
    got = read(sent, dataclasses.replace(default_layout(robot), task="stool_assembly"), robot, "")
    np.testing.assert_array_equal(got.images["wrist"], preprocess(picture, (100, 304, 772, 976), 32))


def test_openpis_robots() -> None:
    droid = robot_features("droid", 32)
    image = np.zeros((32, 32, 3), np.uint8)
    sent = {"observation/exterior_image_1_left": image, "observation/wrist_image_left": image, "prompt": "go"}
    sent |= {"observation/joint_position": np.arange(7.0), "observation/gripper_position": 0.5}
    got = read(sent, LAYOUTS["droid"], droid, "")
    assert got.state.tolist() == [0, 1, 2, 3, 4, 5, 6, 0.5]
    assert got.present == {"base_0_rgb": True, "left_wrist_0_rgb": True, "right_wrist_0_rgb": False}
    aloha = robot_features("aloha", 32)
    cameras = {name: np.zeros((3, 32, 32), np.uint8) for name in ("cam_high", "cam_left_wrist", "cam_right_wrist")}
    got = read({"state": np.zeros(14), "images": cameras}, LAYOUTS["aloha"], aloha, "fold")
    assert all(got.present.values()) and got.prompt == "fold" and sum(aloha.delta_mask) == 12


def test_a_missing_camera_is_masked_not_seen() -> None:
    policy = tiny_policy("images")
    plain, bright = request("images"), request("images", **{"observation/wrist": np.full((32, 32, 3), 250, np.uint8)})
    assert np.abs(infer(policy, [plain], 1)[0].actions - infer(policy, [bright], 1)[0].actions).max() > 1e-3
    for one in (plain, bright):
        object.__setattr__(one, "present", dict(one.present, wrist=False))
    np.testing.assert_array_equal(infer(policy, [plain], 1)[0].actions, infer(policy, [bright], 1)[0].actions)


def test_clients_share_an_inference_and_a_full_queue_says_so() -> None:
    async def scenario() -> tuple[list[int], set[int]]:
        batcher = Batcher(tiny_policy(), target=3, timeout_s=0.2, max_queue=3)
        waiting = [asyncio.create_task(batcher.infer(request())) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Busy, match="3 requests wait"):
            await batcher.infer(request())
        running = asyncio.create_task(batcher.run())
        answers = await asyncio.wait_for(asyncio.gather(*waiting), 60)
        running.cancel()
        return batcher.sizes, {answer.batch for answer in answers}

    assert asyncio.run(scenario()) == ([3], {3})


def test_server_answers_refuses_and_is_healthy() -> None:
    policy = tiny_policy()

    async def scenario() -> None:
        port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        stop = asyncio.Event()
        server = PolicyServer(
            Batcher(policy, 1, 0.0), default_layout(policy.features), policy.features, {"robot": "odd"}
        )
        running = asyncio.create_task(server.run("127.0.0.1", 0, stop, port.set_result))
        url = f"127.0.0.1:{await asyncio.wait_for(port, 20)}"
        async with websockets.connect(f"ws://{url}", compression=None) as client:
            assert wire.unpack(await client.recv()) == {"robot": "odd"}
            await client.send(wire.pack(message()))
            reply = wire.unpack(await client.recv())
            states, images, objects, prompts = observations("state", 1)
            np.testing.assert_allclose(
                reply["actions"], policy.infer(states, images, objects, prompts, 1)[0], atol=1e-5
            )
            await client.send(wire.pack({"prompt": "no state"}))
            text = await client.recv()
            assert isinstance(text, str) and "observation/objects is missing" in text
            with pytest.raises(websockets.ConnectionClosed) as closed:
                await client.recv()
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1011
        reply = await asyncio.to_thread(urllib.request.urlopen, f"http://{url}/healthz", timeout=20)
        assert (reply.status, reply.read()) == (200, b"OK\n")
        stop.set()
        await asyncio.wait_for(running, 20)

    asyncio.run(scenario())


def test_openpi_checkpoint_serves(tmp_path: pathlib.Path) -> None:
    config, robot, policy = tiny("images", actions_per_token=1), features("images"), None
    from tests.models.robots import noisy_params

    params = noisy_params(config)
    export_openpi(tmp_path / "c", config, params, norm_stats(robot, 6), "lab")
    policy = openpi_policy(tmp_path / "c", config, robot, "", POLICY)
    states, images, objects, prompts = observations("images", 2)
    from cel_jax.models.policy import Policy

    want = Policy(config, params, norm_stats(robot, 6), robot, POLICY).infer(states, images, objects, prompts, 3)
    np.testing.assert_allclose(policy.infer(states, images, objects, prompts, 3), want, atol=1e-5)
    with pytest.raises(CheckpointError, match=r"--asset_id, of \['lab'\]"):
        openpi_policy(tmp_path / "c", config, robot, "other", POLICY)
    with pytest.raises(CheckpointError, match="--robot"):
        load(tmp_path / "c", "", "", POLICY)
    with pytest.raises(CheckpointError, match="--tokenizer"):
        load(tmp_path / "c", "droid", "", POLICY)


@contextlib.contextmanager
def served(folder: pathlib.Path) -> Iterator[int]:
    command = [sys.executable, "-m", "launch.serve", f"--checkpoint={folder}", "--port=0", "--host=127.0.0.1"]
    command += ["--batch_target=4", "--batch_timeout_s=0.05"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if found := re.match(r"serving on port (\d+)", line):
                yield int(found.group(1))
                break
        else:
            raise AssertionError(f"the server ended: {lines}")
    finally:
        process.terminate()
        assert process.wait(30) == 0


@pytest.mark.slow
def test_the_real_openpi_client(tmp_path: pathlib.Path) -> None:
    python = client_python(CLIENT, "openpi_client.websocket_client_policy", "openpi-client", "typing-extensions")
    policy = tiny_policy("images")
    save_policy(
        tmp_path / "p",
        policy.config,
        policy.params,
        policy.norm_stats,
        policy.features,
        policy.policy_config,
        "float32",
    )
    arrays = {name.replace("/", "__"): value for name, value in message("images").items() if name != "prompt"}
    np.savez(tmp_path / "o.npz", **arrays)
    with served(tmp_path / "p") as port:
        command = [python, str(CHECK), str(port), str(tmp_path / "o.npz")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["metadata"] == {"robot": "odd", "action_horizon": 6}
    assert (told["count"], told["shape"], told["finite"]) == (20, [6, 5], True)
    assert {"actions", "policy_timing", "server_timing"} <= set(told["keys"])
    assert max(told["batches"]) > 1 and told["previous"]
    assert "observation/state is missing" in told["refusal"] or "is missing" in told["refusal"]


@pytest.mark.parametrize("part", ["state", "actions"])
def test_statistics_for_fewer_dimensions_than_the_robot_has_are_refused(part: str, tmp_path: pathlib.Path) -> None:
    sizes = {"state": 14, "actions": 14} | {part: 9}
    entries = {name: {"mean": [0.0] * n, "std": [1.0] * n, "q01": None, "q99": None} for name, n in sizes.items()}
    (tmp_path / "assets" / "odd").mkdir(parents=True)
    (tmp_path / "assets" / "odd" / "norm_stats.json").write_text(json.dumps({"norm_stats": entries}))
    robot, settings = robot_features("aloha", 224), PolicyConfig(action_horizon=10)
    config = make_config("nano", robot, settings)
    with pytest.raises(CheckpointError, match=f"{part.rstrip('s')} statistics have 9 numbers, robot aloha has 14"):
        openpi_policy(tmp_path, config, robot, "odd", settings)
