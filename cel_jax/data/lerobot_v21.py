"""LeRobot v2.0 and v2.1 folders: one parquet file and one video per camera for each episode.

meta/ announces all episodes; files of some may be missing, which is named and skipped. Damage is an error.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

from cel_jax.data import demonstrations as demo
from cel_jax.data import lerobot_common as common
from cel_jax.data.lerobot_common import read_info as read_info
from cel_jax.data.video import read_frames


def open_folder(
    path: pathlib.Path,
    cameras: tuple[str, ...] | None = None,
    transform: demo.Transform | None = None,
    image_stride_frames: int = 1,
    delta_mask: tuple[bool, ...] | None = None,
) -> demo.DemoSet:
    """See `open_demos`. Raises `DatasetError` where the description is damaged or no episode is usable."""
    info = read_info(path)
    reader = _Reader(path, info, cameras, transform, image_stride_frames, delta_mask)
    all_rows = list(_episode_rows(path))
    common.check_total(path, info, len(all_rows))
    reasons = [(row, reader.missing(row["episode_index"])) for row in all_rows]
    rows = [row for row, reason in reasons if not reason]
    skipped = tuple(demo.Skipped(f"episode {row['episode_index']}", reason) for row, reason in reasons if reason)
    common.check_usable(path, len(rows), skipped)
    return demo.DemoSet(path, reader.features, len(all_rows), skipped, lambda: map(reader.read, rows))


def _episode_rows(path: pathlib.Path) -> Iterator[dict[str, Any]]:
    file = path / "meta" / "episodes.jsonl"
    if not file.is_file():
        raise demo.DatasetError(f"{file} is missing; copy the whole meta folder")
    for number, line in enumerate(file.read_text().splitlines(), 1):
        try:
            row = json.loads(line)
            yield {
                "episode_index": int(row["episode_index"]),
                "length": int(row["length"]),
                "tasks": list(row["tasks"]),
            }
        except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise demo.DatasetError(f"{file}: line {number} is not an episode's description: {error!r}") from error


class _Reader:
    """Reads episodes of one folder with fixed options."""

    def __init__(
        self,
        path: pathlib.Path,
        info: dict[str, Any],
        cameras: tuple[str, ...] | None,
        transform: demo.Transform | None,
        stride: int,
        delta_mask: tuple[bool, ...] | None,
    ) -> None:
        self._path, self._info, self._transform, self._stride = path, info, transform, stride
        self._keys = common.image_keys(info)
        self._cameras = demo.choose_cameras(path, cameras, tuple(self._keys))
        self.features = common.build_features(info, self._cameras, delta_mask)

    def _file(self, template: str, episode: int, key: str = "") -> pathlib.Path:
        chunk = episode // int(self._info.get("chunks_size", 1000))
        return self._path / template.format(episode_chunk=chunk, episode_index=episode, video_key=key)

    def _is_video(self, camera: str) -> bool:
        return self._info["features"][self._keys[camera]]["dtype"] == "video"

    def _video(self, camera: str, episode: int) -> pathlib.Path:
        return self._file(self._info["video_path"], episode, self._keys[camera])

    def missing(self, episode: int) -> str:
        """What keeps an episode from being read: the first file that is not there; empty if all are."""
        wanted = [self._file(self._info["data_path"], episode)]
        wanted += [self._video(camera, episode) for camera in self._cameras if self._is_video(camera)]
        gone = [str(file.relative_to(self._path)) for file in wanted if not file.is_file()]
        return f"{gone[0]} missing" if gone else ""

    def read(self, row: dict[str, Any]) -> demo.Demonstration:
        """One episode; raises `DatasetError` naming it where its files are damaged or partial."""
        episode, length = row["episode_index"], row["length"]
        where = f"{self._path.name} episode {episode}"
        table = common.read_table(self._file(self._info["data_path"], episode))
        state, action = common.episode_arrays(where, table, self.features, length)
        found = {camera: self._images(where, camera, episode, table) for camera in self._cameras}
        steps, images = common.align(where, found)
        prompt = row["tasks"][0] if row["tasks"] else ""
        name = f"{self._path.name}/{episode:06d}"
        return demo.Demonstration(name, prompt, state, action, steps, images, self.features.fps_hz)

    def _images(self, where: str, camera: str, episode: int, table: Any) -> dict[int, bytes]:
        if not self._is_video(camera):
            key = self._keys[camera]
            return common.column_images(where, self._path, table, key, camera, self._stride, self._transform)
        video = self._video(camera, episode)
        try:
            frames = read_frames(video, len(table), self._stride)
            return common.encode_frames(frames, camera, self._stride, self._transform)
        except ValueError as error:
            raise demo.DatasetError(f"{where}, camera {camera}: {error}") from error
