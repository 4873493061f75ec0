"""LeRobot v3.0 folders: parquet and video files that hold many episodes each; images may also be parquet columns.

meta/episodes/*/*.parquet says in which file, and from which time on, an episode lies.
"""

from __future__ import annotations

import pathlib
from typing import Any

from cel_jax.data import demonstrations as demo
from cel_jax.data import lerobot_common as common
from cel_jax.data.video import read_frames

NEEDED = ("episode_index", "tasks", "length", "data/chunk_index", "data/file_index")


def open_folder(
    path: pathlib.Path,
    cameras: tuple[str, ...] | None = None,
    transform: demo.Transform | None = None,
    image_stride_frames: int = 1,
    delta_mask: tuple[bool, ...] | None = None,
) -> demo.DemoSet:
    """See `open_demos`. Raises `DatasetError` where the description is damaged or no episode is usable."""
    info = common.read_info(path)
    reader = _Reader(path, info, cameras, transform, image_stride_frames, delta_mask)
    all_rows = _episode_rows(path)
    common.check_total(path, info, len(all_rows))
    reasons = [(row, reader.missing(row)) for row in all_rows]
    rows = [row for row, reason in reasons if not reason]
    skipped = tuple(demo.Skipped(f"episode {row['episode_index']}", reason) for row, reason in reasons if reason)
    common.check_usable(path, len(rows), skipped)
    return demo.DemoSet(path, reader.features, len(all_rows), skipped, lambda: map(reader.read, rows))


def _episode_rows(path: pathlib.Path) -> list[dict[str, Any]]:
    """One dictionary per episode, in the order of their index."""
    files = sorted((path / "meta" / "episodes").glob("*/*.parquet"))
    if not files:
        raise demo.DatasetError(f"{path}/meta/episodes holds no parquet file; copy the whole meta folder")
    rows: list[dict[str, Any]] = []
    for file in files:
        table = common.read_table(file)
        missing = [name for name in NEEDED if name not in table.column_names]
        if missing:
            raise demo.DatasetError(f"{file}: lacks the columns {missing}")
        chosen = [name for name in table.column_names if name in NEEDED or name.startswith("videos/")]
        rows += table.select(chosen).to_pylist()
    return sorted(rows, key=lambda row: row["episode_index"])


class _Reader:
    """Reads episodes of one folder with fixed options; keeps the last parquet file in memory."""

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
        self._held: tuple[pathlib.Path, Any] | None = None

    def _data_file(self, row: dict[str, Any]) -> pathlib.Path:
        chunk, file = row["data/chunk_index"], row["data/file_index"]
        return self._path / self._info["data_path"].format(chunk_index=chunk, file_index=file)

    def _video_file(self, row: dict[str, Any], key: str) -> pathlib.Path:
        chunk, file = row.get(f"videos/{key}/chunk_index"), row.get(f"videos/{key}/file_index")
        if chunk is None or file is None:
            raise demo.DatasetError(f"{self._path}: meta/episodes does not say where {key} of its episodes lies")
        return self._path / self._info["video_path"].format(video_key=key, chunk_index=chunk, file_index=file)

    def _is_video(self, camera: str) -> bool:
        return self._info["features"][self._keys[camera]]["dtype"] == "video"

    def missing(self, row: dict[str, Any]) -> str:
        """The first file of an episode that is not there; empty if all are."""
        wanted = [self._data_file(row)]
        wanted += [self._video_file(row, self._keys[camera]) for camera in self._cameras if self._is_video(camera)]
        gone = [str(file.relative_to(self._path)) for file in wanted if not file.is_file()]
        return f"{gone[0]} missing" if gone else ""

    def read(self, row: dict[str, Any]) -> demo.Demonstration:
        """One episode; raises `DatasetError` naming it where its files are damaged or partial."""
        where = f"{self._path.name} episode {row['episode_index']}"
        table = self._rows(row)
        state, action = common.episode_arrays(where, table, self.features, row["length"])
        found = {camera: self._images(where, camera, row, table) for camera in self._cameras}
        steps, images = common.align(where, found)
        prompt = row["tasks"][0] if row["tasks"] else ""
        name = f"{self._path.name}/{row['episode_index']:06d}"
        return demo.Demonstration(name, prompt, state, action, steps, images, self.features.fps_hz)

    def _rows(self, row: dict[str, Any]) -> Any:
        """The episode's part of its parquet file."""
        file = self._data_file(row)
        if self._held is None or self._held[0] != file:
            self._held = (file, common.read_table(file))
        table = self._held[1]
        wanted = table.column("episode_index").to_numpy() == row["episode_index"]
        return table.filter(wanted)

    def _images(self, where: str, camera: str, row: dict[str, Any], table: Any) -> dict[int, bytes]:
        key = self._keys[camera]
        if not self._is_video(camera):
            return common.column_images(where, self._path, table, key, camera, self._stride, self._transform)
        start_s = float(row.get(f"videos/{key}/from_timestamp") or 0.0)
        video, fps_hz = self._video_file(row, key), self.features.fps_hz
        try:
            frames = read_frames(video, len(table), self._stride, start_s, fps_hz)
            return common.encode_frames(frames, camera, self._stride, self._transform)
        except ValueError as error:
            raise demo.DatasetError(f"{where}, camera {camera}: {error}") from error
