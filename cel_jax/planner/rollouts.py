"""Many episodes at fixed weights, side by side; each under its own path at the model-call boundary."""

from __future__ import annotations

import dataclasses
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from cel_jax.planner.adapters import Adapter
from cel_jax.planner.records import Report
from cel_jax.planner.tool_harness import Chat

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Spec:
    """One attempt that is to be made."""

    task: str
    initial_state: int
    attempt: int

    @property
    def episode(self) -> str:
        """A name fit for a path."""
        return f"{self.task.replace('/', '.').replace('+', '-')}.s{self.initial_state}.a{self.attempt}"


class Harness(Protocol):
    """Whatever plays an episode."""

    def run(self, task: str, initial_state: int, attempt: int, chat: Chat) -> Any: ...


@dataclasses.dataclass(frozen=True)
class Site:
    """Where episodes are played: how to make a harness, how to read its outcome, how to reach the planner."""

    make_harness: Callable[[], Harness]
    adapter: Adapter
    chat_of: Callable[[str], Chat]
    close_episode: Callable[[str], None] = lambda episode: None
    active: Callable[[int], None] = lambda count: None  # told how many episodes still run


def play(specs: Sequence[Spec], site: Site, slots: int, deadline_s: float) -> list[Report]:
    """A report for each spec, in order. An episode that raises, or hangs beyond the deadline, is invalid.

    deadline_s: for all episodes together. Threads that hang are left behind, cut off from the planner.
    """
    run = _Run(specs, site)
    threads = [threading.Thread(target=run.work, daemon=True, name=f"episode-slot-{i}") for i in range(slots)]
    site.active(min(slots, len(specs)))
    for thread in threads:
        thread.start()
    end = time.monotonic() + deadline_s
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return run.reports()


class _Run:
    """The episodes still to play and the reports so far."""

    def __init__(self, specs: Sequence[Spec], site: Site) -> None:
        self._specs, self._site = list(specs), site
        self._todo: queue.SimpleQueue[int] = queue.SimpleQueue()
        for index in range(len(specs)):
            self._todo.put(index)
        self._lock = threading.Lock()
        self._left = len(specs)
        self._over = False
        self._reports: dict[int, Report] = {}

    def work(self) -> None:
        harness = self._site.make_harness()
        while not self._over:
            try:
                index = self._todo.get_nowait()
            except queue.Empty:
                return
            self._finish(index, self._play(self._specs[index], harness))

    def _play(self, spec: Spec, harness: Harness) -> Report:
        try:
            ended = harness.run(spec.task, spec.initial_state, spec.attempt, self._site.chat_of(spec.episode))
            return self._site.adapter(spec.episode, ended)
        except Exception:  # a broken harness is an invalid episode, reported with its trace
            log.exception("episode %s: the harness failed; the episode is invalid", spec.episode)
            return _invalid(spec)

    def _finish(self, index: int, report: Report) -> None:
        self._site.close_episode(report.episode)
        with self._lock:
            if not self._over:
                self._reports[index] = report
            self._left -= 1
            self._site.active(self._left)

    def reports(self) -> list[Report]:
        """Closes the round: what has not ended is invalid and can record nothing more."""
        with self._lock:
            self._over = True
            hung = [i for i in range(len(self._specs)) if i not in self._reports]
        for index in hung:
            log.warning("episode %s did not end in time; it is invalid", self._specs[index].episode)
            self._site.close_episode(self._specs[index].episode)
        return [self._reports.get(i) or _invalid(spec) for i, spec in enumerate(self._specs)]


def _invalid(spec: Spec) -> Report:
    return Report(spec.episode, spec.task, spec.initial_state, spec.attempt, 0.0, False)
