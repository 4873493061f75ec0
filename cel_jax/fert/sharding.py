"""Where arrays live on a mesh (data, fsdp): samples over both axes, large parameters over fsdp."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXES = ("data", "fsdp")
MIN_SHARDED_SIZE = 2**14  # numbers; below this a copy everywhere is cheaper than gathering


def make_mesh(fsdp_devices: int = 1, devices: list[jax.Device] | None = None) -> Mesh:
    """All `devices` (default: every one of the run) as (data, fsdp). Raises ValueError if they do not divide."""
    devices = jax.devices() if devices is None else devices
    if fsdp_devices < 1 or len(devices) % fsdp_devices:
        raise ValueError(f"fsdp_devices={fsdp_devices} does not divide {len(devices)} devices")
    return Mesh(np.array(devices).reshape(-1, fsdp_devices), AXES)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Leading axis over all devices."""
    return NamedSharding(mesh, PartitionSpec(AXES))


def state_sharding(tree: Any, mesh: Mesh) -> Any:
    """A sharding for every leaf of a training state (arrays or shapes)."""
    return jax.tree.map(lambda leaf: NamedSharding(mesh, leaf_spec(leaf.shape, mesh.shape["fsdp"])), tree)


def leaf_spec(shape: tuple[int, ...], fsdp: int) -> PartitionSpec:
    """Large leaves are cut along their largest divisible axis (the first of equals); the rest are copied."""
    axes = [axis for axis, size in enumerate(shape) if size % fsdp == 0]
    if fsdp == 1 or not axes or np.prod(shape) < MIN_SHARDED_SIZE:
        return PartitionSpec()
    cut = max(axes, key=lambda axis: (shape[axis], -axis))
    return PartitionSpec(*["fsdp" if axis == cut else None for axis in range(cut + 1)])


def put_batch(batch: Any, mesh: Mesh) -> Any:
    """Host arrays of this process's samples -> global arrays over the mesh."""
    sharding = batch_sharding(mesh)
    return jax.tree.map(lambda rows: jax.make_array_from_process_local_data(sharding, np.asarray(rows)), batch)


def bytes_per_device(tree: Any, mesh: Mesh) -> int:
    """Bytes that one device holds of a state given as shapes (`jax.eval_shape`): for a dry run."""
    fsdp = mesh.shape["fsdp"]
    cuts = [(leaf, fsdp if leaf_spec(leaf.shape, fsdp) else 1) for leaf in jax.tree.leaves(tree)]
    return sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize // cut for leaf, cut in cuts)
