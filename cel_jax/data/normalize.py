"""Z-score normalisation of states, object poses and action chunks, as openpi has it.

Shape letters: n samples, H horizon, S state numbers, A action numbers, O objects, P numbers per object pose.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

EPSILON = 1e-6  # openpi's
STD_FLOOR = 1e-3  # a constant dimension would otherwise turn sensor noise into huge numbers


@dataclasses.dataclass(frozen=True, eq=False)
class NormStats:
    """Means and standard deviations, float32.

    state_*: [S]. action_*: [H, A] per time step, or [A]. objects_*: [O, P], or None without object poses.
    """

    state_mean: np.ndarray
    state_std: np.ndarray
    action_mean: np.ndarray
    action_std: np.ndarray
    objects_mean: np.ndarray | None = None
    objects_std: np.ndarray | None = None


def normalize(x: Any, mean: Any, std: Any) -> Any:
    """(x - mean) / (std + 1e-6), broadcast over leading axes. Works on numpy and jax arrays."""
    return (x - mean) / (std + EPSILON)


def unnormalize(x: Any, mean: Any, std: Any) -> Any:
    """The inverse of `normalize`."""
    return x * (std + EPSILON) + mean


def compute_stats(
    states: np.ndarray,
    chunks: np.ndarray,
    mask: np.ndarray,
    objects: np.ndarray | None = None,
    per_step: bool = True,
    std_floor: float = STD_FLOOR,
) -> NormStats:
    """Statistics of a data set, population standard deviation, never below `std_floor`.

    states: [n, S]. chunks: [n, H, A], already relative to the state where the policy predicts deltas.
    mask: bool [n, H], False past an episode's end. objects: [n, O, P] or None.
    per_step: one mean per time step and dimension [H, A] (small networks learn better), else per dimension [A].
    Raises ValueError for wrong shapes, numbers that are not finite, or a time step that no chunk covers.
    """
    _check_inputs(states, chunks, mask, objects)
    state_mean, state_std = _moments(states, np.ones(len(states), bool), std_floor)
    if per_step:
        pairs = [_moments(chunks[:, h], mask[:, h], std_floor) for h in range(chunks.shape[1])]
        action_mean, action_std = (np.stack(part) for part in zip(*pairs, strict=True))
    else:
        action_mean, action_std = _moments(chunks.reshape(-1, chunks.shape[-1]), mask.reshape(-1), std_floor)
    if objects is None:
        return NormStats(state_mean, state_std, action_mean, action_std)
    return NormStats(
        state_mean, state_std, action_mean, action_std, *_moments(objects, np.ones(len(objects), bool), std_floor)
    )


def _moments(rows: np.ndarray, valid: np.ndarray, std_floor: float) -> tuple[np.ndarray, np.ndarray]:
    """rows [n, ...], valid bool [n] -> float32 mean and standard deviation [...], computed in float64."""
    chosen = np.asarray(rows[valid], np.float64)
    return chosen.mean(0).astype(np.float32), np.maximum(chosen.std(0), std_floor).astype(np.float32)


def _check_inputs(states: np.ndarray, chunks: np.ndarray, mask: np.ndarray, objects: np.ndarray | None) -> None:
    if states.ndim != 2 or chunks.ndim != 3 or mask.shape != chunks.shape[:2] or len(states) != len(chunks):
        raise ValueError(
            "compute_stats expects states [n, S], chunks [n, H, A] and mask [n, H]; "
            f"got {states.shape}, {chunks.shape} and {mask.shape}"
        )
    if objects is not None and (objects.ndim != 3 or len(objects) != len(states)):
        raise ValueError(f"compute_stats expects objects [{len(states)}, O, P]; got {objects.shape}")
    uncovered = np.flatnonzero(~mask.any(0)).tolist()
    if uncovered:
        raise ValueError(f"no chunk is valid at time steps {uncovered}: every episode is shorter than the horizon")
    for name, array in (("states", states), ("chunks", chunks[mask]), ("objects", objects)):
        if array is not None and not np.isfinite(array).all():
            bad = sorted(set(np.argwhere(~np.isfinite(array))[:, -1].tolist()))
            raise ValueError(f"compute_stats: {name} holds NaN or infinity in dimensions {bad}; clean the data first")


def to_dict(stats: NormStats) -> dict[str, Any]:
    """Plain lists, ready for json; absent object statistics are null."""
    values = {field.name: getattr(stats, field.name) for field in dataclasses.fields(stats)}
    return {name: None if value is None else np.asarray(value).tolist() for name, value in values.items()}


def from_dict(values: Mapping[str, Any]) -> NormStats:
    """The inverse of `to_dict`. Raises ValueError naming a field that is missing, unknown or inconsistent."""
    known = [field.name for field in dataclasses.fields(NormStats)]
    missing = [name for name in known[:4] if values.get(name) is None]
    unknown = sorted(set(values) - set(known))
    if missing or unknown:
        raise ValueError(f"normalisation statistics: missing {missing}, unknown {unknown}; expected {known}")
    arrays = {name: np.asarray(value, np.float32) for name, value in values.items() if value is not None}
    stats = NormStats(**arrays)
    _check_stats(stats)
    return stats


def _check_stats(stats: NormStats) -> None:
    for part, dims in (("state", (1,)), ("action", (1, 2)), ("objects", (2,))):
        mean, std = getattr(stats, f"{part}_mean"), getattr(stats, f"{part}_std")
        if mean is None and std is None:
            continue
        if mean is None or std is None or mean.shape != std.shape or mean.ndim not in dims:
            shapes = [None if x is None else x.shape for x in (mean, std)]
            raise ValueError(f"{part} statistics: expected mean and std of one shape with {dims} axes, got {shapes}")
        if not (np.isfinite(mean).all() and np.isfinite(std).all() and (std >= 0).all()):
            raise ValueError(f"{part} statistics: mean must be finite and std finite and not negative")


def save_openpi(stats: NormStats, folder: str | pathlib.Path) -> pathlib.Path:
    """Writes openpi's `norm_stats.json` (z-score; quantiles null; [H, A] actions stay nested lists)."""
    entries = {"state": _entry(stats.state_mean, stats.state_std)}
    entries["actions"] = _entry(stats.action_mean, stats.action_std)
    if stats.objects_mean is not None and stats.objects_std is not None:
        entries["objects"] = _entry(stats.objects_mean, stats.objects_std)
    path = pathlib.Path(folder) / "norm_stats.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"norm_stats": entries}, indent=2))
    return path


def _entry(mean: np.ndarray, std: np.ndarray) -> dict[str, Any]:
    return {"mean": mean.tolist(), "std": std.tolist(), "q01": None, "q99": None}


def load_openpi(path: str | pathlib.Path) -> NormStats:
    """Reads openpi's `norm_stats.json` (the file or its folder); the quantiles are not used by pi0."""
    path = pathlib.Path(path)
    path = path / "norm_stats.json" if path.is_dir() else path
    try:
        entries = json.loads(path.read_text())["norm_stats"]
        values = {f"{part}_{name}": entries[key][name] for part, key in _OPENPI_KEYS for name in ("mean", "std")}
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: not openpi's norm_stats.json with state and actions: {error!r}") from error
    if "objects" in entries:
        values |= {f"objects_{name}": entries["objects"][name] for name in ("mean", "std")}
    return from_dict(values)


_OPENPI_KEYS = (("state", "state"), ("action", "actions"))


def compare(stats: NormStats, incoming: NormStats, mean_shift: float = 0.5, std_ratio: float = 2.0) -> list[str]:
    """What differs between the statistics a policy was trained with and those of incoming data.

    A dimension is named where its mean moved by more than `mean_shift` standard deviations or its standard
    deviation changed by more than a factor `std_ratio`. Empty: they agree. Statistics are never averaged:
    the policy keeps its own, and a person decides.
    """
    theirs = {part: _pair(incoming, part) for part in ("state", "action", "objects")}
    return compare_parts(stats, theirs, mean_shift, std_ratio)


def compare_parts(
    stats: NormStats,
    incoming: Mapping[str, Sequence[Any]],
    mean_shift: float = 0.5,
    std_ratio: float = 2.0,
    narrow_ratio: float | None = None,
) -> list[str]:
    """`compare` for some parts alone. incoming: `state`, `action` or `objects` -> (mean, std), or (None, None).

    narrow_ratio: how much narrower the incoming data may be, where that is another number than `std_ratio`.
    """
    found: list[str] = []
    for part, theirs in incoming.items():
        limits = mean_shift, std_ratio, narrow_ratio or std_ratio
        found += _compare_part(part, _pair(stats, part), theirs, *limits)
    return found


def _pair(stats: NormStats, part: str) -> tuple[Any, Any]:
    return getattr(stats, f"{part}_mean"), getattr(stats, f"{part}_std")


def _compare_part(
    part: str, ours: Sequence[Any], theirs: Sequence[Any], mean_shift: float, std_ratio: float, narrow_ratio: float
) -> list[str]:
    shapes = [None if pair[0] is None else pair[0].shape for pair in (ours, theirs)]
    if shapes[0] != shapes[1]:
        return [f"{part}: shape {shapes[0]} expected, {shapes[1]} came"]
    if shapes[0] is None:
        return []
    shift = np.abs(theirs[0] - ours[0]) / (ours[1] + EPSILON)
    ratio = (theirs[1] + EPSILON) / (ours[1] + EPSILON)
    bad = np.argwhere((shift > mean_shift) | (ratio > std_ratio) | (1 / ratio > narrow_ratio))
    return [_difference(part, tuple(index), ours, theirs) for index in bad.tolist()]


def _difference(part: str, index: tuple[int, ...], ours: Sequence[Any], theirs: Sequence[Any]) -> str:
    place = ", ".join(str(i) for i in index)
    return (
        f"{part}[{place}]: mean {ours[0][index]:.4g} expected, {theirs[0][index]:.4g} came; "
        f"std {ours[1][index]:.4g} expected, {theirs[1][index]:.4g} came"
    )
