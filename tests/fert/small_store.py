"""A store of whole episodes in memory, with the priorities written out literally: one weight per chunk."""

from __future__ import annotations

import dataclasses

import numpy as np

from cel_jax.data.images import encode_jpeg
from cel_jax.data.normalize import NormStats
from cel_jax.replay.table import TableEmpty

H, S, O, P = 6, 4, 2, 3  # noqa: E741
RHO = 0.5
STATS = NormStats(
    state_mean=np.full(S, 0.1, np.float32),
    state_std=np.full(S, 2.0, np.float32),
    action_mean=np.linspace(-1, 1, H * S).reshape(H, S).astype(np.float32),
    action_std=np.full((H, S), 0.5, np.float32),
    objects_mean=np.zeros((O, P), np.float32),
    objects_std=np.ones((O, P), np.float32),
)


@dataclasses.dataclass
class Notice:
    kind: str
    episode: str
    steps: np.ndarray
    state: np.ndarray
    objects: np.ndarray | None
    images: dict
    num_frames: int
    robot_id: str = "robot-1"


@dataclasses.dataclass
class Batch:
    keys: tuple
    state: np.ndarray
    actions: np.ndarray
    action_mask: np.ndarray
    objects: np.ndarray | None
    images: dict
    priority_version: int
    probabilities: np.ndarray


def notice(kind: str, name: str, frames: int, seed: int, with_images: bool = False) -> Notice:
    """A smooth trajectory; images, if any, on every third frame."""
    rng = np.random.default_rng(seed)
    path = np.cumsum(rng.normal(size=(frames, S + O * P)), 0).astype(np.float32)
    steps = np.arange(0, frames, 3 if with_images else 1, dtype=np.int32)
    images = {c: [encode_jpeg(_picture(path[t], i)) for t in steps] for i, c in enumerate(("head", "wrist"))}
    objects = None if with_images else path[steps, S:].reshape(-1, O, P)
    return Notice(kind, name, steps, path[steps, :S], objects, images if with_images else {}, frames)


def _picture(row: np.ndarray, camera: int) -> np.ndarray:
    tint = 255 / (1 + np.exp(-row[camera : camera + 3]))
    return np.broadcast_to(tint, (16, 16, 3)).astype(np.uint8)


class SmallStore:
    """Implements the learner's `Store`; `calls` records what it was told, in order."""

    def __init__(self):
        self.waiting: list[Notice] = []
        self.episodes: dict[str, Notice] = {}
        self.weights: dict[tuple[str, int], float] = {}
        self.calls: list[tuple] = []
        self.version = 0

    def add(self, *notices: Notice) -> None:
        self.waiting += notices

    def next_experience(self, max_items):
        taken, self.waiting = self.waiting[:max_items], self.waiting[max_items:]
        for one in taken:
            if one.kind == "success":
                self.episodes[one.episode] = one
                self.weights |= {(one.episode, int(t)): 0.5 for t in one.steps}
        return taken

    def embedded(self, episode_id):
        self.calls.append(("embedded", episode_id))

    def quarantine(self, episode_id, reason):
        self.calls.append(("quarantine", episode_id, reason))
        self.weights = {key: weight for key, weight in self.weights.items() if key[0] != episode_id}

    def apply_event(self, failure_id, intervals):
        self.calls.append(("event", failure_id, intervals))
        if not intervals:
            return
        self.version += 1
        spans = {name: range(start, stop) for name, start, stop in intervals}
        for (name, t), weight in self.weights.items():
            chunk = range(t, min(t + H, self.episodes[name].num_frames))
            overlap = sum(frame in spans.get(name, ()) for frame in chunk)
            self.weights[name, t] = RHO * weight + overlap / len(chunk)

    def sample(self, n, seed):
        if not self.weights:
            raise TableEmpty("no chunk")
        keys, weights = list(self.weights), np.array(list(self.weights.values()))
        chosen = np.random.default_rng(seed).choice(len(keys), n, p=weights / weights.sum())
        return self._batch([keys[i] for i in chosen], weights[chosen] / weights.sum())

    def _batch(self, keys, probabilities):
        rows = [(self.episodes[name], int(np.searchsorted(self.episodes[name].steps, t))) for name, t in keys]
        state = np.stack([e.state[row] for e, row in rows])
        actions = np.stack([e.state[np.minimum(row + np.arange(H), len(e.state) - 1)] for e, row in rows])
        mask = np.stack([t + np.arange(H) < self.episodes[name].num_frames for name, t in keys])
        poses = None if rows[0][0].objects is None else np.stack([e.objects[row] for e, row in rows])
        images = {c: [e.images[c][row] for e, row in rows] for c in rows[0][0].images}
        return Batch(tuple(keys), state, actions, mask, poses, images, self.version, probabilities)
