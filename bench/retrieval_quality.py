"""Does retrieval find the stage at which a robot failed? Scored with the simulator's own stage labels, used for nothing
else.

    python -m bench.retrieval_quality [--quick] [--policy=policies/phone_packaging_state] [--episodes=300]
        [--seed=70000] [--query_frames=L] [--endpoint_offset_frames=DELTA]

The policy packs phones on simulated robots (state mode); its successes fill the ring, its failures ask. A retrieved
segment is right where most of its frames (the alignment itself, without the extension) carry the label of the frame at
which the query ends. A query of three seconds often begins in the stage before, and so do the segments that match it:
`ends in it` asks for the label at the segment's end, where the query ends, too; `like the query` compares the label of
most matched frames with that of most of the query's frames; `touched` counts any frame. Beside it: random segments of
the query's length, and the nearest single frame without alignment.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np

from bench import report
from bench.report import Figure
from cel_jax.config import FertConfig
from cel_jax.data.episode import Episode
from cel_jax.evaluation.rollout import run_trials
from cel_jax.evaluation.scene_policy import scene_policy
from cel_jax.evaluation.simulated import MakeSimulated, options_for
from cel_jax.evaluation.trials import make_trials
from cel_jax.fert import retrieval
from cel_jax.fert.embedding import Embedder
from cel_jax.fert.retrieval import Retrieved
from cel_jax.fert.ring import SuccessRing
from cel_jax.models.policy import Policy
from cel_jax.models.saving import load_policy
from configs.phone_packaging_state import get_config

NAME = "retrieval_quality"
ROBOTS, FIRST_ROBOT, SEED = 16, 0, 70_000
TARGET = ">= 0.9"
MEASURES = ("precision", "ends in it", "like the query", "touched")
Search = Callable[[np.ndarray], list[Retrieved]]


def main(argv: Sequence[str] | None = None) -> int:
    flags = _parse(argv)
    policy = load_policy(flags.policy)
    episodes = collect(policy, 32 if flags.quick else flags.episodes, flags.processes, flags.seed)
    asking = dataclasses.replace(
        get_config().fert, query_frames=flags.query_frames, endpoint_offset_frames=flags.endpoint_offset_frames
    )
    report.write(NAME, measure(policy, episodes, asking), report.command(NAME, argv))
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = report.parser(__doc__)
    parser.add_argument("--policy", default="policies/phone_packaging_state")
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--processes", type=int, default=0, help="default: one for each core")
    parser.add_argument("--seed", type=int, default=SEED, help="of the first scene")
    configured = get_config().fert
    parser.add_argument("--query_frames", type=int, default=configured.query_frames)
    parser.add_argument("--endpoint_offset_frames", type=int, default=configured.endpoint_offset_frames)
    return parser.parse_args(argv)


def collect(policy: Policy, count: int, processes: int = 0, seed: int = SEED) -> list[Episode]:
    """Recorded trials of the policy, in the scenes and with the time limits of the shipped configuration."""
    config = get_config()
    robots = min(ROBOTS, count)
    trials = make_trials(robots, FIRST_ROBOT, -(-count // robots), seed)[:count]
    options = options_for(config.task, config.policy.execute_frames, record=True, processes=processes)
    results = run_trials(scene_policy(policy, config.task.prompt), MakeSimulated(config.task), trials, options)
    return [result.episode for result in results if result.episode is not None]


def measure(policy: Policy, episodes: list[Episode], config: FertConfig) -> list[Figure]:
    embedder = Embedder(None, policy.norm_stats)
    successes = {episode.header.id: episode for episode in episodes if episode.success}
    ring = fill(embedder, list(successes.values()), config)
    failures = [episode for episode in episodes if not episode.success]
    queries = [(episode, *query_of(embedder, episode, config)) for episode in failures]
    asked = [(query, stage, usual) for _, query, stage, usual in queries if len(query)]
    rng = np.random.default_rng(0)
    searches: dict[str, Search] = {
        "alignment": functools.partial(retrieval.retrieve, ring, config=config),
        "random segments": functools.partial(retrieval.random_intervals, ring, config=config, rng=rng),
        "nearest single frame": functools.partial(retrieval.nearest_frame, ring, config=config),
    }
    scores = {name: score(search, asked, successes, config) for name, search in searches.items()}
    made = [Figure("successes in the ring", len(successes), ""), Figure("failures that asked", len(asked), "")]
    return made + figures(scores, np.array([stage for _, stage, _ in asked]), config.top_k)


def fill(embedder: Embedder, successes: list[Episode], config: FertConfig) -> SuccessRing:
    frames = [embed(embedder, one, retrieval.success_steps(one.num_frames, config)) for one in successes]
    if not frames:
        raise ValueError("no success among the episodes: take more of them, or a better policy")
    ring = SuccessRing(frames[0].shape[1], 10**9)
    for one, rows in zip(successes, frames, strict=True):
        ring.add(one.header.id, rows, one.num_frames)
    return ring


def query_of(embedder: Embedder, episode: Episode, config: FertConfig) -> tuple[np.ndarray, int, int]:
    """(float32 [M, D], the label at its last frame, that of most frames); no rows for an episode that is too short."""
    steps = retrieval.query_steps(episode.num_frames, config)
    if not len(steps):
        return np.zeros((0, 0), np.float32), -1, -1
    return embed(embedder, episode, steps), int(episode.stage[steps[-1]]), usual(episode.stage[steps])


def usual(labels: np.ndarray) -> int:
    """The most frequent one."""
    values, counts = np.unique(labels, return_counts=True)
    return int(values[np.argmax(counts)])


def embed(embedder: Embedder, episode: Episode, steps: np.ndarray) -> np.ndarray:
    objects = None if episode.objects is None else episode.objects[steps]
    return embedder({}, episode.state[steps], objects)


def score(
    search: Search, asked: list[tuple[np.ndarray, int, int]], successes: dict[str, Episode], config: FertConfig
) -> np.ndarray:
    """float64 [queries, MEASURES]: of each query's matches, the share that fulfils each."""
    found = [[shares(one, successes, config, *labels) for one in search(query)] for query, *labels in asked]
    return np.array([np.mean(matches, axis=0) for matches in found])


def shares(one: Retrieved, successes: dict[str, Episode], config: FertConfig, stage: int, most: int) -> list[bool]:
    """MEASURES of a match before its extension. stage: at the query's end. most: of the query's frames."""
    episode = successes[one.episode_id]
    start, stop = retrieval.raw_interval(one.left, one.right, episode.num_frames, config.stride_frames)
    labels = episode.stage[start:stop]
    return [usual(labels) == stage, bool(labels[-1] == stage), usual(labels) == most, bool((labels == stage).any())]


def figures(scores: dict[str, np.ndarray], stages: np.ndarray, top_k: int) -> list[Figure]:
    """Overall beside the controls, then by stage."""
    made = []
    for column, what in enumerate(MEASURES):
        ours = float(scores["alignment"][:, column].mean())
        for name, rows in scores.items():
            target = TARGET if name == "alignment" and not column else ""
            made.append(
                Figure(f"{what} at {top_k}, {name}", float(rows[:, column].mean()), "", target, "alignment", ours)
            )
    for stage in np.unique(stages).tolist():
        at = stages == stage
        ours, random = (float(scores[name][at, 0].mean()) for name in ("alignment", "random segments"))
        made.append(Figure(f"precision at stage {stage}, {at.sum()} failures", ours, "", "", "random segments", random))
    return made


if __name__ == "__main__":
    raise SystemExit(main())
