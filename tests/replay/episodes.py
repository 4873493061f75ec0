"""Made-up episodes for tests. Shape letters: T frames, S = A = 4, O = 2 objects of P = 9."""

from __future__ import annotations

import numpy as np
import simplejpeg

from cel_jax.data.episode import CameraSpec, Episode, EpisodeHeader, Features, Label, Outcome, Source

S = A = 4
STATE_FEATURES = Features("sim", S, A, (), (2, 9), 30.0, (True,) * A)
IMAGE_FEATURES = Features("sim", S, A, (CameraSpec("head", 16, 24), CameraSpec("wrist", 8, 8)), None, 30.0, (True,) * A)


def jpeg(camera: CameraSpec, seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (camera.height, camera.width, 3), np.uint8)
    return simplejpeg.encode_jpeg(pixels, quality=90)


def make_episode(
    key: str,
    num_frames: int = 20,
    outcome: Outcome = Outcome.SUCCESS,
    images: bool = False,
    human: tuple[int, ...] = (),
    seed: int = 0,
    stride: int = 3,
) -> Episode:
    """action[t] = (t, seed, ...), so that a batch says where it came from."""
    rng = np.random.default_rng(seed)
    steps = np.arange(num_frames)
    image_steps = np.arange(0, num_frames, stride, dtype=np.int32) if images else np.zeros(0, np.int32)
    source = np.full(num_frames, Source.POLICY, np.uint8)
    source[list(human)] = Source.HUMAN
    pictures = {c.name: tuple(jpeg(c, seed * 1000 + int(s)) for s in image_steps) for c in IMAGE_FEATURES.cameras}
    action = np.stack([steps, np.full(num_frames, seed), steps * 0, steps * 0], axis=1).astype(np.float32)
    return Episode(
        header=EpisodeHeader(key, "station-1", "worker-1", "robot-1", "abc", "phone", "Pack the phone.", 30.0, 12.5),
        label=Label(outcome, "operator", 99.25, "it fell" if outcome is Outcome.DISCARD else ""),
        state=rng.normal(size=(num_frames, S)).astype(np.float32),
        action=action,
        image_steps=image_steps,
        images=pictures if images else {},
        objects=None if images else rng.normal(size=(num_frames, 2, 9)).astype(np.float32),
        policy_version=np.full(num_frames, 7, np.int64),
        source=source,
        intervened=source == Source.HUMAN,
        stage=(steps // 5).astype(np.int16),
        capture_time_s=1e9 + steps / 30.0,
    )


def assert_same(a: Episode, b: Episode) -> None:
    """Bit for bit, dtypes included."""
    assert a.header == b.header and a.label == b.label
    assert {k: tuple(v) for k, v in a.images.items()} == {k: tuple(v) for k, v in b.images.items()}
    for name in (
        "state",
        "action",
        "image_steps",
        "objects",
        "policy_version",
        "source",
        "intervened",
        "stage",
        "capture_time_s",
    ):
        x, y = getattr(a, name), getattr(b, name)
        if x is None or y is None:
            assert x is y, name
            continue
        assert x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes(), name
