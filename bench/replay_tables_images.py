"""What a learner gets of images: batches of three 224 px cameras from a table, decoded, and frames embedded.

Run by `bench.replay_tables` in each table's own environment; needs no jax.
"""

from __future__ import annotations

import dataclasses
import os
import time

import numpy as np

from cel_jax.data.images import decode_jpeg, encode_jpeg
from cel_jax.replay.table import make_table

HORIZON, FRAMES, EPISODES, BATCH, CAMERAS, PX, STRIDE = 30, 500, 12, 1024, 3, 224, 3


def measure(table: str, batches: int) -> dict[str, float]:
    """Milliseconds of a batch of BATCH chunks drawn, and drawn and decoded on every core; and samples a second."""
    from concurrent.futures import ThreadPoolExecutor

    made, kb = filled(table)
    made.sample(BATCH, 0)
    drawn_s, whole_s = [], []
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for seed in range(1, batches + 1):
            start_s = time.perf_counter()
            batch = made.sample(BATCH, seed)
            drawn_s.append(time.perf_counter() - start_s)
            for jpegs in batch.images.values():
                np.stack(list(pool.map(decode_jpeg, jpegs, chunksize=16)))
            whole_s.append(time.perf_counter() - start_s)
    made.close()
    whole = float(np.median(whole_s))
    return {"drawn": 1e3 * float(np.median(drawn_s)), "decoded": 1e3 * whole, "rate": BATCH / whole, "kb": kb}


def filled(table: str):  # type: ignore[no-untyped-def]
    """(a table of EPISODES successes with images at every third frame, kilobytes of a JPEG)."""
    from bench.replay_tables import make_episode

    rng, made = np.random.default_rng(0), make_table(table, HORIZON)
    jpegs = [encode_jpeg(picture(rng)) for _ in range(64)]
    steps = np.arange(0, FRAMES, STRIDE, dtype=np.int32)
    for number in range(EPISODES):
        images = {f"camera{c}": tuple(jpegs[(c + number + i) % 64] for i in range(len(steps))) for c in range(CAMERAS)}
        plain = make_episode(number, rng, FRAMES, objects=False)
        made.insert_episode(
            dataclasses.replace(plain, image_steps=steps, images=images), steps, np.full(len(steps), 0.5)
        )
    return made, float(np.mean([len(jpeg) for jpeg in jpegs])) / 1e3


def picture(rng: np.random.Generator) -> np.ndarray:
    """uint8 [PX, PX, 3]: smooth patches under mild noise, about as large as a camera's JPEG."""
    small = rng.integers(0, 255, (14, 14, 3)).repeat(PX // 14, axis=0).repeat(PX // 14, axis=1)
    return np.clip(small + rng.normal(0, 6, (PX, PX, 3)), 0, 255).astype(np.uint8)
