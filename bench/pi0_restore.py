"""How much host memory a restore takes: openpi's checkpoint straight to the device, against numpy first as openpi does.

    python -m bench.pi0_restore [--quick] [--depth=4] [--preset=pi0] [--folder=WITH_A_CHECKPOINT]

A checkpoint of random weights is written once (each leaf one stored chunk, float32: the worst case for a reader); each
way restores it in a process of its own, to bfloat16, and its peak resident memory is read from the kernel. On a CPU the
device's arrays are host memory too: they are subtracted, as is what the process had before.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from bench import report
from bench.report import Figure

NAME, TARGET_GB = "pi0_restore", 2.0
WAYS = ("blocks", "numpy")


def main(argv: Sequence[str] | None = None) -> int:
    flags = _parse(argv)
    if flags.restore:
        print(json.dumps(restore(flags)))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(flags.folder or scratch)
        if not flags.folder:
            _child(flags, "write", folder)
        figures = list(_figures(flags, {way: json.loads(_child(flags, way, folder)) for way in WAYS}))
    report.write(NAME, figures, report.command(NAME, argv))
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = report.parser(__doc__)
    parser.add_argument("--preset", default="pi0")
    parser.add_argument("--depth", type=int, default=4, help="layers of the language model (pi0: 18); 0: the preset's")
    parser.add_argument("--folder", default="", help="a checkpoint to read; default: one is made")
    parser.add_argument("--restore", default="", help=argparse.SUPPRESS)
    flags = parser.parse_args(argv)
    flags.preset, flags.depth = ("small", 0) if flags.quick and not flags.restore else (flags.preset, flags.depth)
    return flags


def _child(flags: argparse.Namespace, way: str, folder: pathlib.Path) -> str:
    words = [f"--preset={flags.preset}", f"--depth={flags.depth}", f"--folder={folder}", f"--restore={way}"]
    done = subprocess.run(
        [sys.executable, "-m", f"bench.{NAME}", *words], stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.splitlines()[-1]


def restore(flags: argparse.Namespace) -> dict[str, float]:
    """In the child. Gigabytes and seconds."""
    import jax

    from cel_jax.models.params_io import on_one_device, restore_openpi
    from cel_jax.models.pi0 import param_shapes

    config = _config(flags)
    if flags.restore == "write":
        _write(config, pathlib.Path(flags.folder))
        return {}
    places = on_one_device(config)
    jax.block_until_ready(jax.numpy.zeros(8) + 1)
    before, start_s = _peak_gb(), time.monotonic()
    if flags.restore == "blocks":
        params = restore_openpi(flags.folder, config, "bfloat16", places)
    else:
        params = jax.device_put(restore_openpi(flags.folder, config, "bfloat16"), places)
    jax.block_until_ready(params)
    arrays = sum(leaf.nbytes for leaf in jax.tree.leaves(params)) / 1e9
    on_host = arrays if jax.default_backend() == "cpu" else 0.0
    largest = max(leaf.size * 4 for leaf in jax.tree.leaves(param_shapes(config))) / 1e9
    return {
        "over": _peak_gb() - before - on_host, "arrays": arrays, "largest": largest, "s": time.monotonic() - start_s,
    }  # fmt: skip


def _config(flags: argparse.Namespace):  # type: ignore[no-untyped-def]
    from cel_jax.config import PolicyConfig
    from cel_jax.models.presets import make_config
    from cel_jax.workers.serving.observations import robot_features

    config = make_config(flags.preset, robot_features("aloha", 224), PolicyConfig(action_horizon=30))
    if not flags.depth:
        return config
    experts = {
        name: dataclasses.replace(getattr(config, name), depth=flags.depth) for name in ("paligemma", "action_expert")
    }
    return dataclasses.replace(config, **experts)


def _write(config, folder: pathlib.Path) -> None:  # type: ignore[no-untyped-def]
    import jax
    import numpy as np
    import orbax.checkpoint as ocp

    from cel_jax.models.pi0 import param_shapes

    rng = np.random.default_rng(0)
    tree = jax.tree.map(lambda leaf: {"value": rng.standard_normal(leaf.shape, np.float32)}, param_shapes(config))
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save((folder / "params").absolute(), {"params": tree})


def _peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def _figures(flags: argparse.Namespace, found: dict[str, dict[str, float]]):  # type: ignore[no-untyped-def]
    ours, peer = found["blocks"], found["numpy"]
    what = f"{flags.preset}{f' with {flags.depth} layers' if flags.depth else ''}: restoring {ours['arrays']:.2f} GB"
    name = f"{what} (largest leaf {ours['largest']:.2f} GB stored): peak memory over baseline and arrays"
    yield Figure(name, ours["over"], "GB", f"<= {TARGET_GB:g}", "numpy first, as openpi loads", peer["over"])
    yield Figure(f"{what}: time", ours["s"], "s", "", "numpy first", peer["s"])


if __name__ == "__main__":
    raise SystemExit(main())
