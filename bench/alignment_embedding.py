"""How many frames a second are embedded for retrieval: three cameras, the tower alone, with random weights.

    python -m bench.alignment_embedding [--quick] [--preset=nano]
    python -m bench.alignment_embedding --preset=pi0         (So400m at 224 px, 55,312 numbers a frame: a GPU)

From uint8 images in host memory to embeddings in host memory, in the embedder's own batches. Only every third frame of
an episode is embedded, so raw frames pass three times as fast.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, cast

import jax
import numpy as np

from bench import report
from bench.report import Figure
from cel_jax.data.normalize import NormStats
from cel_jax.fert.embedding import Embedder
from cel_jax.models.presets import PRESETS
from cel_jax.models.siglip import SigLIP

NAME = "alignment_embedding"
CAMERAS, STATE_NUMBERS = ("head", "left_wrist", "right_wrist"), 16


def main(argv: Sequence[str] | None = None) -> int:
    parser = report.parser(__doc__)
    parser.add_argument("--preset", default="nano", choices=sorted(PRESETS))
    parser.add_argument("--frames", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    flags = parser.parse_args(argv)
    frames, repeats = (128, 2) if flags.quick else (flags.frames, flags.repeats)
    report.write(NAME, measure(flags.preset, frames, repeats), report.command(NAME, argv))
    return 0


def make_embedder(preset: str) -> tuple[Embedder, int]:
    """(an embedder with a fresh tower, its image size in pixels)."""
    size = PRESETS[preset]
    tower = SigLIP(size.siglip, size.paligemma.width, size.dtype, remat="off")
    example = np.zeros((1, size.image_px, size.image_px, 3), np.float32)
    params = jax.jit(tower.init, static_argnums=2)(jax.random.key(0), example, False)
    unused = np.zeros((1, STATE_NUMBERS), np.float32)
    stats = NormStats(unused[0], unused[0] + 1, unused, unused + 1, None, None)

    def tokens(weights: Any, images: jax.Array) -> jax.Array:
        return cast(jax.Array, tower.apply(weights, images, False))

    return Embedder(tokens, stats, CAMERAS, params), size.image_px


def measure(preset: str, frames: int, repeats: int) -> list[Figure]:
    embed, px = make_embedder(preset)
    rng = np.random.default_rng(0)
    images = {name: rng.integers(0, 255, (frames, px, px, 3), np.uint8) for name in CAMERAS}
    state = rng.normal(size=(frames, STATE_NUMBERS)).astype(np.float32)
    width, taken = embed(images, state).shape[1], []
    for _ in range(repeats):
        start_s = time.perf_counter()
        embed(images, state)
        taken.append(time.perf_counter() - start_s)
    rate = frames / float(np.median(taken))
    what = f"{preset}: 3 x {px} px to {width} numbers"
    return [
        Figure(f"embedded, {what}", rate, "frames/s"),
        Figure("raw frames at stride 3", 3 * rate, "frames/s", "", "one robot", 30.0),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
