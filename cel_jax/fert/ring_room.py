"""Where the success ring of a learner lives: spread over its devices, reserved at once, or in host memory."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from cel_jax.config import RunConfig
from cel_jax.fert.ring import FIRST_ROWS, SuccessRing

SPARE_ROWS = 1.1  # whole trajectories need contiguous rows
SPARE_MEMORY = 0.05  # of the device: the embedder's and the allocator's own
log = logging.getLogger(__name__)


def make_ring(dim: int, config: RunConfig, mesh: Mesh, step_bytes: int) -> SuccessRing:
    """An empty ring over this process's devices of `mesh`.

    step_bytes: what a training step needs on each device beside what is there now. On an accelerator embeddings are
    bfloat16 and all rows of the window are reserved at once; on a CPU they are float32 and the ring grows.
    """
    devices = [one for one in mesh.devices.flat if one.process_index == jax.process_index()]
    own = Mesh(np.array(devices), ("data",)) if len(devices) > 1 else None
    if devices[0].platform == "cpu":
        return SuccessRing(dim, config.replay.window_frames, jnp.float32, own)
    rows = reserved_rows(config.replay.window_frames, config.fert.stride_frames, len(devices))
    ring_bytes = rows * dim * jnp.dtype(jnp.bfloat16).itemsize
    on_host = not has_room(ring_bytes, step_bytes, devices[0].memory_stats())
    if on_host:
        log.warning(
            "success ring: %.2f GB on each device do not fit beside a training step of %.2f GB; kept in host memory, "
            "where retrieval is slower. Use a smaller window_frames, a smaller micro_batch_size or more devices.",
            ring_bytes / 1e9, step_bytes / 1e9,
        )  # fmt: skip
    return SuccessRing(dim, config.replay.window_frames, jnp.bfloat16, own, on_host=on_host, rows=rows)


def reserved_rows(window_frames: int, stride_frames: int, devices: int) -> int:
    """Coarse frames of the window that one device takes, and a tenth more."""
    return max(FIRST_ROWS, int(-(-SPARE_ROWS * window_frames // (stride_frames * devices))))


def has_room(ring_bytes: int, step_bytes: int, stats: Mapping[str, int] | None) -> bool:
    """Whether both fit into what is free of a device. stats: of `memory_stats`; unknown: the allocator decides."""
    if not stats or "bytes_limit" not in stats:
        return True
    free = (1 - SPARE_MEMORY) * stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    return ring_bytes + step_bytes <= free
