"""Pictures for the notebooks without a plotting library: rows of frames, a heat map with a path, bars, a video.

All pictures are uint8 [height, width, 3]. `show` displays them in a notebook and writes them where there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cel_jax.data.images import encode_jpeg

WHITE, BLUE, RED, GREY = (255, 255, 255), (40, 90, 200), (220, 40, 40), (150, 150, 150)


def show(picture: np.ndarray, name: str, folder: str | Path = ".") -> Path:
    """Writes <folder>/<name>.jpg and, in a notebook, displays it."""
    path = Path(folder) / f"{name}.jpg"
    path.write_bytes(encode_jpeg(np.ascontiguousarray(picture), quality=92))
    _display("Image", path)
    return path


def show_video(frames: Sequence[np.ndarray], name: str, folder: str | Path = ".", fps_hz: int = 10) -> Path:
    """Writes <folder>/<name>.mp4 (h264; even sizes) and, in a notebook, displays it."""
    import av

    path = Path(folder) / f"{name}.mp4"
    height, width = (size // 2 * 2 for size in frames[0].shape[:2])
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=fps_hz, options={"crf": "20"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for frame in frames:
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame[:height, :width]), format="rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
    _display("Video", path)
    return path


def _display(kind: str, path: Path) -> None:
    try:
        from IPython import display
    except ModuleNotFoundError:
        return
    arguments = {"embed": True} if kind == "Video" else {}
    display.display(getattr(display, kind)(filename=str(path), **arguments))


def side_by_side(pictures: Sequence[np.ndarray], gap: int = 4) -> np.ndarray:
    """In a row; the lower ones are filled up with white."""
    height = max(len(picture) for picture in pictures)
    parts = []
    for picture in pictures:
        below = np.full((height - len(picture), *picture.shape[1:]), 255, np.uint8)
        parts += [np.concatenate([picture, below]), np.full((height, gap, 3), 255, np.uint8)]
    return np.concatenate(parts[:-1], axis=1)


def stacked(pictures: Sequence[np.ndarray], gap: int = 4) -> np.ndarray:
    """One below the other."""
    return side_by_side([picture.swapaxes(0, 1) for picture in pictures], gap).swapaxes(0, 1)


def heat_map(table: np.ndarray, path: Sequence[tuple[int, int]] = (), cell_px: int = 4) -> np.ndarray:
    """Dark is near. table: float [M, N]; path: its (row, column) cells, in red."""
    scale = float(np.ptp(table)) or 1.0
    shade = (255 * (table - table.min()) / scale).astype(np.uint8)
    picture = np.repeat(shade[..., None], 3, axis=-1)
    for row, column in path:
        picture[row, column] = RED
    return picture.repeat(cell_px, axis=0).repeat(cell_px, axis=1)


def bars(values: np.ndarray, highest: float, height_px: int = 80, width_px: int = 900) -> np.ndarray:
    """Blue columns from left to right, `highest` filling the height."""
    picture = np.full((height_px, width_px, 3), WHITE, np.uint8)
    columns = np.asarray(values)[np.linspace(0, len(values) - 1, width_px).round().astype(int)]
    tall = np.clip(height_px * columns / (highest or 1.0), 0, height_px).astype(int)
    picture[np.arange(height_px)[:, None] >= height_px - tall] = BLUE
    picture[-1] = GREY
    return picture
