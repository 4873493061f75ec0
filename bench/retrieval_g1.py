"""How well alignment finds the same moment in real episodes of other lengths, against marks that people made.

    python -m bench.retrieval_g1 [--data=FOLDER_OF_unitree_g1_v21]

Each mark of each episode (bench/marks) asks as a failure would: the three seconds before it, every third frame. Each of
the other eleven episodes answers with the interval that aligns best. The alignment error is the time between the end of
that interval and the same mark there. Beside it: the nearest single frame without alignment, and random intervals.
Embeddings are normalised joint states (only two of the twelve episodes have a video): a hand that is about to close and
one that has let go look alike to them, and nothing but the camera would tell.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from bench import report
from bench.report import Figure
from cel_jax.config import FertConfig
from cel_jax.data.demonstrations import open_demos
from cel_jax.fert import retrieval
from cel_jax.fert.retrieval import Retrieved
from cel_jax.fert.ring import SuccessRing

NAME = "retrieval_g1"
MARKS = Path(__file__).parent / "marks" / "unitree_g1_phases.json"
DATA = Path(os.environ.get("CEL_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")) / "unitree_g1_v21"
FPS, CLOSE_S = 30.0, 0.5
CONFIG = FertConfig(top_k=11, h_pre_frames=0, h_post_frames=0, endpoint_offset_frames=0)
Search = Callable[[SuccessRing, np.ndarray], list[Retrieved]]


def main(argv: Sequence[str] | None = None) -> int:
    parser = report.parser(__doc__)
    parser.add_argument("--data", default=str(DATA))
    flags = parser.parse_args(argv)
    report.write(NAME, list(figures(embedded(Path(flags.data)))), report.command(NAME, argv))
    return 0


def embedded(folder: Path) -> list[np.ndarray]:
    """float32 [coarse frames, 26] per episode: normalised joint states of length one, every third frame."""
    states = [demo.state for demo in open_demos(folder, cameras=()).demos]
    joined = np.concatenate(states)
    mean, std = joined.mean(0), joined.std(0) + 1e-3
    rows = [((state - mean) / std)[:: CONFIG.stride_frames] for state in states]
    return [(row / np.linalg.norm(row, axis=1, keepdims=True)).astype(np.float32) for row in rows]


def marked() -> tuple[list[str], list[list[int]]]:
    """Names of the marks, and their frames in each episode."""
    values = json.loads(MARKS.read_text())
    return values["marks"], [values["frames"][str(i)] for i in range(len(values["frames"]))]


def errors_s(episodes: list[np.ndarray], search: Search, mark: int) -> np.ndarray:
    """float64 [n]: distance in seconds of every match of every episode's query at this mark."""
    frames, found = marked()[1], []
    for asked, episode in enumerate(episodes):
        end = frames[asked][mark] // CONFIG.stride_frames
        query = episode[max(0, end - retrieval.max_query_frames(CONFIG)) : end]
        for match in search(_ring(episodes, asked), query):
            found.append(abs(match.stop - frames[int(match.episode_id)][mark]) / FPS)
    return np.array(found)


def _ring(episodes: list[np.ndarray], without: int) -> SuccessRing:
    ring = SuccessRing(episodes[0].shape[1], 10**6)
    for index, rows in enumerate(episodes):
        if index != without:
            ring.add(str(index), rows, CONFIG.stride_frames * len(rows))
    return ring


def searches() -> dict[str, Search]:
    rng = np.random.default_rng(0)
    return {
        "alignment": functools.partial(retrieval.retrieve, config=CONFIG),
        "alignment, best 3 of 11": functools.partial(retrieval.retrieve, config=dataclasses.replace(CONFIG, top_k=3)),
        "nearest single frame": functools.partial(retrieval.nearest_frame, config=CONFIG),
        "random intervals": functools.partial(retrieval.random_intervals, config=CONFIG, rng=rng),
    }


def figures(episodes: list[np.ndarray]) -> Iterator[Figure]:
    """Over all marks, then mark by mark beside random intervals."""
    names = marked()[0]
    found = {way: [errors_s(episodes, search, i) for i in range(len(names))] for way, search in searches().items()}
    ours = found["alignment"]
    for way, errors in found.items():
        joined = np.concatenate(errors)
        yield Figure(
            f"alignment error, {way}, {len(joined)} matches: median", float(np.median(joined)), "s", "", "alignment",
            float(np.median(np.concatenate(ours))),
        )  # fmt: skip
        yield Figure(f"within {CLOSE_S} s of the mark, {way}", float(np.mean(joined <= CLOSE_S)), "")
    for name, own, random in zip(names, ours, found["random intervals"], strict=True):
        yield Figure(
            f"median alignment error where {name}", float(np.median(own)), "s", "", "random intervals",
            float(np.median(random)),
        )  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
