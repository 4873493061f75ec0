"""Demonstrations read from other people's data sets, and which reader a folder needs.

Shape letters: T frames, V frames with images, S state numbers, A action numbers, O objects, P pose numbers.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from cel_jax.data import images as image_codec
from cel_jax.data.episode import Features

Transform = Callable[[str, np.ndarray], np.ndarray]  # (camera, uint8 [h, w, 3]) -> uint8 [h', w', 3]

NOT_JOINTS = ("gripper", "hand", "finger", "claw")  # stay absolute where names are known (openpi's convention)


class DatasetError(ValueError):
    """A data set that cannot be read as it claims; the message names folder, episode and what to do."""


@dataclasses.dataclass(frozen=True)
class Demonstration:
    """One demonstrated episode.

    state: float32 [T, S]. action: float32 [T, A]. image_steps: int32 [V], rising.
    images: camera -> V JPEG byte strings, empty where no cameras were asked for. objects: float32 [T, O, P] or None.
    taught: bool [T], False where the demonstrator errs on purpose; None: all of it is to be learnt.
    """

    id: str
    task_prompt: str
    state: np.ndarray
    action: np.ndarray
    image_steps: np.ndarray
    images: Mapping[str, tuple[bytes, ...]]
    fps_hz: float
    objects: np.ndarray | None = None
    taught: np.ndarray | None = None

    def taught_steps(self) -> np.ndarray:
        """bool [T], whether or not something was marked."""
        return np.ones(len(self.state), bool) if self.taught is None else self.taught


@dataclasses.dataclass(frozen=True)
class Skipped:
    """A part of a data set that is not there: what, why, and how many episodes it costs."""

    name: str
    reason: str
    episodes: int = 1


@dataclasses.dataclass(frozen=True)
class DemoSet:
    """An opened data set. `demos` starts a fresh pass; damage found on the way raises `DatasetError`."""

    path: pathlib.Path
    features: Features
    total: int
    skipped: tuple[Skipped, ...]
    start: Callable[[], Iterator[Demonstration]]

    @property
    def demos(self) -> Iterator[Demonstration]:
        return self.start()

    def __iter__(self) -> Iterator[Demonstration]:
        return self.start()

    def __len__(self) -> int:
        return self.total - sum(part.episodes for part in self.skipped)

    def summary(self, names: int = 5) -> str:
        """For example: `data/unitree: 2 of 100 episodes; 98 skipped: episode 0 (video missing), ...`."""
        text = f"{self.path.parent.name}/{self.path.name}: {len(self)} of {self.total} episodes"
        if not self.skipped:
            return text
        shown = ", ".join(f"{part.name} ({part.reason})" for part in self.skipped[:names])
        more = f" and {len(self.skipped) - names} more" if len(self.skipped) > names else ""
        return f"{text}; {self.total - len(self)} skipped: {shown}{more}"


def open_demos(
    path: str | pathlib.Path,
    cameras: tuple[str, ...] | None = None,
    transform: Transform | None = None,
    image_stride_frames: int = 1,
    delta_mask: tuple[bool, ...] | None = None,
) -> DemoSet:
    """Opens a folder of LeRobot v2.x, LeRobot v3.0 or RLDS (TFDS TFRecord) data; the reader is found by its files.

    cameras: None for all, () for none (episodes without their video are then usable). transform: applied to
    every decoded image (a crop, a resize); without one, stored JPEG bytes are passed on untouched.
    image_stride_frames: keep every n-th frame's images. delta_mask: which actions are joint targets; by default
    those whose names tell no gripper or hand, and none where state and action differ in size or have no names.
    """
    from cel_jax.data import lerobot_v21, lerobot_v30, rlds  # here: the readers use this module's records

    path = pathlib.Path(path)
    options = (cameras, transform, image_stride_frames, delta_mask)
    if (path / "meta" / "info.json").is_file():
        version = str(lerobot_v21.read_info(path).get("codebase_version", "none"))
        if version.startswith("v2."):
            return lerobot_v21.open_folder(path, *options)
        if version.startswith("v3."):
            return lerobot_v30.open_folder(path, *options)
        raise DatasetError(
            f"{path}: LeRobot codebase_version {version}; v2.x and v3.x are read; convert it with lerobot"
        )
    builder = rlds.find_builder(path)
    if builder is not None:
        return rlds.open_folder(builder, *options)
    raise DatasetError(
        f"{path}: no data set found; expected meta/info.json (LeRobot) or features.json and dataset_info.json (RLDS)"
    )


def choose_cameras(path: pathlib.Path, asked: tuple[str, ...] | None, present: tuple[str, ...]) -> tuple[str, ...]:
    """The cameras to read. Raises where one that was asked for does not exist."""
    if asked is None:
        return present
    unknown = [name for name in asked if name not in present]
    if unknown:
        raise DatasetError(f"{path}: no cameras {unknown}; the data set has {list(present)}")
    return asked


def default_delta_mask(names: tuple[str, ...] | None, state_dim: int, action_dim: int) -> tuple[bool, ...]:
    """True for joints by name; all False (absolute) where nothing is known."""
    if names is None or len(names) != action_dim or state_dim != action_dim:
        return (False,) * action_dim
    return tuple(not any(word in name.lower() for word in NOT_JOINTS) for name in names)


def check_arrays(where: str, state: np.ndarray, action: np.ndarray, state_dim: int, action_dim: int) -> None:
    """Raises `DatasetError` unless state is [T, S] and action [T, A], finite, with T > 0."""
    if state.ndim != 2 or action.ndim != 2 or len(state) != len(action) or len(state) == 0:
        raise DatasetError(
            f"{where}: state {state.shape} and action {action.shape} are not [T, S] and [T, A] of one T > 0"
        )
    if (state.shape[1], action.shape[1]) != (state_dim, action_dim):
        raise DatasetError(
            f"{where}: {state.shape[1]} state and {action.shape[1]} action numbers; the description says "
            f"{state_dim} and {action_dim}"
        )
    for name, array in (("state", state), ("action", action)):
        bad = np.flatnonzero(~np.isfinite(array).all(1))
        if len(bad):
            raise DatasetError(
                f"{where}: {name} is NaN or infinite at frame {bad[0]} ({len(bad)} frames); leave it out"
            )


def recode(where: str, camera: str, step: int, data: bytes, transform: Transform | None) -> bytes:
    """Stored image bytes -> JPEG bytes, untouched where they are a whole JPEG and nothing is to be done."""
    if data[:2] == b"\xff\xd8":
        picture = image_codec.decode_jpeg(data, where, camera, step)
        return data if transform is None else image_codec.encode_jpeg(transform(camera, picture))
    picture = _decode_other(where, camera, step, data)
    return image_codec.encode_jpeg(picture if transform is None else transform(camera, picture))


def _decode_other(where: str, camera: str, step: int, data: bytes) -> np.ndarray:
    """PNG and the like -> uint8 [h, w, 3], by the video library."""
    from cel_jax.data.video import decode_still

    try:
        return decode_still(data)
    except ValueError as error:
        raise image_codec.DamagedImage(f"{where}, camera {camera}, step {step}: {error}") from error
