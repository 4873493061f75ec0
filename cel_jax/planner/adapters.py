"""Harness adapters: pure conversion of how an episode ended into the five fields. One for each harness."""

from __future__ import annotations

from typing import Any, Protocol

from cel_jax.planner.code_harness import CodeEpisode
from cel_jax.planner.records import Report
from cel_jax.planner.tool_harness import ToolEpisode


class Adapter(Protocol):
    """Called with the episode's name at the proxy and with what its harness returned."""

    def __call__(self, episode: str, ended: Any) -> Report: ...


def from_tool_harness(episode: str, ended: ToolEpisode) -> Report:
    """Everything but `infrastructure` is the planner's doing: limits, overflow and unreadable calls are failures."""
    reward = 1.0 if ended.status == "success" else 0.0
    return Report(episode, ended.task, ended.initial_state, ended.attempt, reward, ended.status != "infrastructure")


def from_code_harness(episode: str, ended: CodeEpisode) -> Report:
    """This harness has no statuses: a broken sandbox or server is an exception, all else is a score."""
    reward = 1.0 if ended.task_completed else 0.0
    return Report(episode, ended.task_name, ended.seed, ended.trial, reward, not ended.exception)


def from_libero_pro(episode: str, ended: dict[str, Any]) -> Report:
    """Episodes of a LIBERO-PRO run: `suite`, `perturbation`, `task_id`, `init_state_id`, `trial`, `success`, `error`.

    Raises ValueError naming what is missing. The benchmark itself is not part of this project.
    """
    needed = ("suite", "perturbation", "task_id", "init_state_id", "trial", "success")
    missing = [name for name in needed if name not in ended]
    if missing:
        raise ValueError(f"episode {episode}: the harness reported no {', '.join(missing)}")
    task = f"{ended['suite']}/{ended['perturbation']}/{ended['task_id']}"
    reward = 1.0 if ended["success"] else 0.0
    return Report(episode, task, int(ended["init_state_id"]), int(ended["trial"]), reward, not ended.get("error"))
