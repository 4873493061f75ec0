"""Small demonstrations of a robot that walks to its first object."""

from __future__ import annotations

import numpy as np

from cel_jax.data.demonstrations import Demonstration
from cel_jax.data.episode import CameraSpec, Features
from cel_jax.data.images import encode_jpeg

BLIND = Features("toy", 3, 2, (), (1, 2), 30.0, (True, False))
SEEING = Features("toy", 3, 2, (CameraSpec("top", 32, 32),), None, 30.0, (True, False))


def walk(number: int, frames: int = 20, prompt: str = "go", images: bool = False) -> Demonstration:
    """Goes in a straight line from a random place to a random goal, which is what its objects show."""
    rng = np.random.default_rng(number)
    begin, goal = rng.uniform(-1, 1, 2), rng.uniform(-1, 1, 2)
    path = (begin + (goal - begin) * np.linspace(0, 1, frames + 1)[:, None]).astype(np.float32)
    steps = np.arange(0, frames, 3, dtype=np.int32) if images else np.zeros(0, np.int32)
    pictures = tuple(encode_jpeg(np.full((32, 32, 3), 10 * step, np.uint8)) for step in steps)
    return Demonstration(
        id=f"walk-{number}",
        task_prompt=prompt,
        state=np.concatenate([path[:-1], np.ones((frames, 1), np.float32)], axis=1),
        action=path[1:],
        image_steps=steps,
        images={"top": pictures} if images else {},
        fps_hz=30.0,
        objects=None if images else np.repeat(goal[None, None].astype(np.float32), frames, 0),
    )
