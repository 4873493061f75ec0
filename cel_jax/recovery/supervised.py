"""A controller or agent under the launcher: restarted when it dies or hangs, given up when it dies at once, again
and again, and then with its own last words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cel_jax.recovery import process, settings, wire
from cel_jax.recovery.placement import Child, LocalStarter, Starter
from cel_jax.recovery.pulse import PulseWatch

QUICK_DEATH_S = 5.0
MAX_QUICK_DEATHS = 5
RESTART_DELAY_S = 0.1


class Supervised:
    """One child of the launcher. `failure` is set once it must not be started again. node, starter: where it runs."""

    def __init__(
        self, run_dir: Path, name: str, argv: Sequence[str], node: str = "local", starter: Starter | None = None
    ) -> None:
        self.name, self.failure = name, ""
        self._argv, self._node, self._starter = list(argv), node, starter or LocalStarter()
        self._log = run_dir / "logs" / f"{name}.log"
        self._pulse_path = wire.control_dir(run_dir) / f"{name}.pulse"
        self._quick_deaths, self._next_s = 0, 0.0
        self._process: Child | None = None

    def step(self, now_s: float, hang_timeout_s: float) -> None:
        """Starts it if it does not run, kills it if its pulse stands still."""
        if self._process is None:
            if now_s >= self._next_s:
                self._start(now_s)
            return
        code = self._process.poll()
        if code is not None:
            self._died(code, now_s)
        elif not self._process.placed:  # its node is not there yet
            self._pulse, self._started_s = PulseWatch(self._pulse_path, now_s), now_s
        elif self._pulse.still_s(now_s) > hang_timeout_s:
            self._process.kill()

    def _start(self, now_s: float) -> None:
        self._process = self._starter.start(self._node, self._argv, settings.child_env(), self._log)
        self._pulse = PulseWatch(self._pulse_path, now_s)
        self._started_s = now_s

    def _died(self, code: int, now_s: float) -> None:
        how = process.describe_exit(code)
        quick = now_s - self._started_s < QUICK_DEATH_S
        self._quick_deaths = self._quick_deaths + 1 if quick else 0
        self._process, self._next_s = None, now_s + RESTART_DELAY_S
        if self._quick_deaths >= MAX_QUICK_DEATHS:
            words = process.last_words(self._log)
            self.failure = f"{self.name} died {self._quick_deaths} times in a row ({how}); its last words:\n{words}"

    def end(self, grace_s: float) -> None:
        """SIGTERM, then SIGKILL after `grace_s` (0: at once)."""
        if self._process is None:
            return
        if grace_s > 0:
            self._process.terminate()
            process.wait_until(lambda: self._process is None or self._process.poll() is not None, grace_s)
        self._process.kill()
        self._process.wait(10.0)
        self._process = None
