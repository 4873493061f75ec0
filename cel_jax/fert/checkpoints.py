"""Checkpoints that are whole or absent: state by orbax, everything else beside it, one manifest committed last."""

from __future__ import annotations

import dataclasses
import logging
import os
import pathlib
import shutil
import threading
import time
from collections.abc import Mapping
from typing import Any

import flax.traverse_util
import jax
import numpy as np
import orbax.checkpoint as ocp

from cel_jax.fert import manifest
from cel_jax.fert.manifest import CheckpointMismatch, Identity, Manifest

EXTRAS = "extras.npz"
log = logging.getLogger(__name__)


class CheckpointFailed(RuntimeError):
    """A save did not reach the disk; training must not go on as if it had."""


@dataclasses.dataclass(frozen=True)
class Restored:
    """What comes back: the state on its devices, and the extras as they were saved."""

    state: Any
    step: int
    policy_version: int
    extras: dict[str, Any]


class CheckpointStore:
    """The checkpoints of one run under `folder`/<step>/.

    Saving copies to the host and returns; a thread writes, and renames the folder into place at the end. A failed or
    overdue save is raised by the next `check`, `save` or `close`.
    keep_last: how many of the newest stay. keep_every_steps: multiples of this stay for ever (0: none).
    Raises CheckpointMismatch if the folder holds another run's or model's checkpoints.
    """

    def __init__(
        self,
        folder: str | pathlib.Path,
        identity: Identity,
        keep_last: int = 2,
        keep_every_steps: int = 0,
        deadline_s: float = 600.0,
    ):
        self._folder = pathlib.Path(folder).absolute()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._identity = identity
        self._keep_last = max(1, keep_last)
        self._keep_every = keep_every_steps
        self._deadline_s = deadline_s
        self._pending: _Save | None = None
        self.metrics: dict[str, float] = {}
        self._clear_partial()
        for step in self.steps():
            found = manifest.read(self._folder / str(step)).identity
            manifest.check_identity(found, identity, f"checkpoint {step}", allow_changed_config=True)

    def steps(self) -> list[int]:
        """Committed steps, rising. A folder without its manifest does not count."""
        named = [path for path in self._folder.iterdir() if path.name.isdigit()]
        return sorted(int(path.name) for path in named if (path / manifest.FILE).exists())

    def latest(self) -> int | None:
        """The newest committed step."""
        return max(self.steps(), default=None)

    def save(self, state: Any, policy_version: int, extras: Mapping[str, Any]) -> None:
        """Start to save. state: a `TrainState`. extras: nested dicts of json values and numpy arrays.

        Blocks for the copy to the host, and for the save before it if that is still being written.
        """
        self._finish()
        start = time.monotonic()
        leaves = {name: _detached(leaf) for name, leaf in manifest.named_leaves(state).items()}
        plain, arrays = manifest.split_arrays(dict(extras))
        head = Manifest(
            self._identity, int(state.step), policy_version, manifest.describe(leaves), plain, {}
        )  # fmt: skip
        self.metrics["checkpoint_copy_s"] = time.monotonic() - start
        self._pending = _Save(lambda: self._write(head, leaves, arrays), head.step, self._deadline_s)

    def check(self) -> None:
        """Raises CheckpointFailed if the running save failed or is overdue. Never blocks."""
        if self._pending is not None and self._pending.poll():
            self.metrics["checkpoint_write_s"] = self._pending.seconds
            self._pending = None

    def close(self) -> None:
        """Wait for the running save, at most its deadline. Raises CheckpointFailed."""
        self._finish()

    def _finish(self) -> None:
        if self._pending is not None:
            self._pending.wait()
            self.check()

    def restore(self, template: Any, step: int | None = None, allow_changed_config: bool = False) -> Restored:
        """Read a committed step (default: the latest) into the structure and sharding of `template`.

        Raises FileNotFoundError if there is none, CheckpointMismatch naming what does not fit.
        """
        step = self.latest() if step is None else step
        if step is None or step not in self.steps():
            raise FileNotFoundError(f"no committed checkpoint {step} in {self._folder}; there are {self.steps()}")
        folder = self._folder / str(step)
        head = manifest.read(folder)
        manifest.check_identity(head.identity, self._identity, f"checkpoint {step}", allow_changed_config)
        leaves = manifest.named_leaves(template)
        manifest.check_leaves(head.leaves, manifest.describe(leaves), f"checkpoint {step}")
        state = jax.tree.unflatten(jax.tree.structure(template), list(_read_leaves(folder, leaves).values()))
        return Restored(state, head.step, head.policy_version, _read_extras(folder, head))

    def _write(self, head: Manifest, leaves: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        partial = self._folder / f"partial-{head.step}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        _write_leaves(partial, leaves)
        np.savez(partial / EXTRAS, **arrays)  # type: ignore[arg-type]
        _sync_tree(partial)
        manifest.write(partial, dataclasses.replace(head, files={EXTRAS: manifest.digest(partial / EXTRAS)}))
        self._commit(partial, head.step)
        self._prune()

    def _commit(self, partial: pathlib.Path, step: int) -> None:
        """The rename makes the step exist. A step saved before (a resume that came past it again) gives way."""
        final = self._folder / str(step)
        if final.exists():
            os.replace(final, self._folder / f"partial-old-{step}")
        os.replace(partial, final)
        _sync(self._folder)
        shutil.rmtree(self._folder / f"partial-old-{step}", ignore_errors=True)

    def _prune(self) -> None:
        for step in self.steps()[: -self._keep_last]:
            if not (self._keep_every and step % self._keep_every == 0):
                shutil.rmtree(self._folder / str(step))

    def _clear_partial(self) -> None:
        """Finish or remove what a crash left: an old step whose replacement never came is put back."""
        for path in self._folder.glob("partial-old-*"):
            final = self._folder / path.name.removeprefix("partial-old-")
            if not final.exists():
                os.replace(path, final)
        for path in self._folder.glob("partial-*"):
            log.warning("checkpoint %s was never finished; removed", path.name)
            shutil.rmtree(path)


class _Save:
    """One save in its thread."""

    def __init__(self, write: Any, step: int, deadline_s: float):
        self.seconds = 0.0
        self._write = write
        self._step = step
        self._deadline_s = deadline_s
        self._start = time.monotonic()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"checkpoint-{step}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._write()
        except BaseException as error:  # handed to the training loop by `poll`
            self._error = error
        self.seconds = time.monotonic() - self._start

    def wait(self) -> None:
        """Until the save ends or its deadline passes."""
        self._thread.join(max(0.0, self._start + self._deadline_s - time.monotonic()))

    def poll(self) -> bool:
        """True once it is committed. Raises CheckpointFailed if it failed or is overdue."""
        if self._thread.is_alive():
            if time.monotonic() - self._start >= self._deadline_s:
                raise CheckpointFailed(f"checkpoint {self._step} is not written after {self._deadline_s} s")
            return False
        if self._error is not None:
            raise CheckpointFailed(f"checkpoint {self._step} was not written: {self._error!r}") from self._error
        return True


def _detached(leaf: Any) -> Any:
    """A copy on the host that no later step can overwrite; leaves spread over hosts are left to orbax."""
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return leaf
    return np.array(leaf, copy=True)


def _nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    return flax.traverse_util.unflatten_dict(dict(leaves), sep="/")


def _write_leaves(folder: pathlib.Path, leaves: dict[str, Any]) -> None:
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        checkpointer.save(folder / "state", args=ocp.args.PyTreeSave(_nested(leaves)))


def _read_leaves(folder: pathlib.Path, template: dict[str, Any]) -> dict[str, Any]:
    """Path -> leaf, in the template's order and on its devices."""
    item = _nested(template)
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        args = ocp.args.PyTreeRestore(item, restore_args=ocp.checkpoint_utils.construct_restore_args(item))
        values = checkpointer.restore(folder / "state", args=args)
    flat = flax.traverse_util.flatten_dict(values, sep="/")
    return {name: flat[name] for name in template}


def _read_extras(folder: pathlib.Path, head: Manifest) -> dict[str, Any]:
    for name, expected in head.files.items():
        if manifest.digest(folder / name) != expected:
            raise CheckpointMismatch(f"checkpoint {head.step}: {name} is damaged (its checksum differs)")
    with np.load(folder / EXTRAS, allow_pickle=False) as data:
        return manifest.join_arrays(head.extras, dict(data))


def _sync_tree(folder: pathlib.Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        _sync(path)


def _sync(path: pathlib.Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
