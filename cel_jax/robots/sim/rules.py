"""The referee of a Phone Packaging trial: order, retries, progress, drops, and the closed box at the end.

Pure: it sees `Facts` and keeps counters, and knows no simulator. One verdict per trial; its reason names the step.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from cel_jax.data.episode import Outcome
from cel_jax.robots.protocol import Verdict
from cel_jax.robots.sim import layout as L
from cel_jax.robots.sim import stages as S
from cel_jax.robots.sim.facts import Facts


@dataclasses.dataclass(frozen=True)
class RuleParams:
    """Limits. The paper allows 8 s without progress; the sped-up simulated task scales it."""

    no_progress_s: float = 4.0
    max_episode_s: float = 45.0
    settle_s: float = 0.10  # a step is done when its condition has held this long
    lost_s: float = 0.35  # an object let go and at rest in a hopeless place ends the trial after this
    wrong_hold_s: float = 0.20
    max_empty_grasps: int = 3
    progress_m: float = 0.005
    max_box_slide_m: float = 0.030  # once it is to be braced
    max_box_knock_m: float = 0.060  # before
    empty_opening_m: float = 0.012
    armed_opening_m: float = 0.030
    grasp_reach_m: float = 0.10


class Referee:
    """Follows one trial. `stage` is 0..9, 10 after success."""

    def __init__(self, params: RuleParams) -> None:
        self.params = params
        self.reset()

    def reset(self) -> None:
        self.stage = 0
        self.verdict: Verdict | None = None
        self.empty_grasps = 0
        self.total_empty_grasps = 0
        self.memory = S.Memory()
        self._held_once: set[int] = set()
        self._since: dict[str, float] = {}
        self._armed = np.zeros(2, bool)
        self._had = False
        self._best, self._best_time_s = np.inf, 0.0

    def update(self, facts: Facts) -> Verdict | None:
        """Looks at the next moment; returns the verdict once there is one."""
        if self.verdict is None:
            rule = S.STAGES[self.stage]
            self._remember(facts)
            reason = self._fault(facts, rule)
            if reason:
                self.verdict = Verdict(Outcome.FAILURE, f"{rule.name}: {reason}")
            elif self._lasted("done", rule.done(facts, self.memory), facts.time_s, self.params.settle_s):
                self._advance(facts)
        return self.verdict

    def _advance(self, facts: Facts) -> None:
        if self.stage == len(S.STAGES) - 1 and not S.contents_in_place(facts):
            self.verdict = Verdict(Outcome.FAILURE, f"{S.STAGES[-1].name}: box closed with contents out of place")
            return
        self.stage += 1
        self._since.clear()
        self._held_once.clear()
        self.empty_grasps = 0
        self._restart_clock(facts.time_s)
        if self.stage == len(S.STAGES):
            self.verdict = Verdict(Outcome.SUCCESS, "box closed with all contents")

    def _lasted(self, key: str, now: bool, time_s: float, limit_s: float) -> bool:
        """Whether a condition has held without a break for `limit_s`."""
        if not now:
            self._since.pop(key, None)
            return False
        return time_s - self._since.setdefault(key, time_s) >= limit_s

    def _remember(self, f: Facts) -> None:
        m = self.memory
        if self.stage == 5 and not m.adapter_stood:
            stands = S.adapter_stands_in_bay(f) and not f.any_held[L.ADAPTER]
            m.adapter_stood = self._lasted("stood", stands, f.time_s, 0.07)
        if m.box_start is None or (self.stage >= 7 and not m.bracing):
            m.box_start, m.bracing = f.position[L.BOX].copy(), self.stage >= 7
        if self.stage == 8:
            m.lid_start = f.in_box[L.LID].copy() if m.lid_start is None else m.lid_start
            m.lid_cleared |= S.lid_shift(f, m) > S.CLEAR_SHIFT
            m.lid_grasped |= bool(f.held[L.LEFT, L.LID]) and m.lid_cleared

    def _fault(self, f: Facts, rule: S.Stage) -> str:
        """The reason to end the trial as a failure now, or an empty text."""
        return (
            self._too_many_empty(f, rule)
            or self._wrong_order(f, rule)
            or self._lost(f, rule)
            or self._undone(f)
            or self._slid(f)
            or self._stalled(f, rule)
        )

    def _too_many_empty(self, f: Facts, rule: S.Stage) -> str:
        target = rule.grasp(f, self.memory)
        for arm in (L.LEFT, L.RIGHT):
            closed = f.opening[arm] < self.params.empty_opening_m
            if closed and self._armed[arm] and target is not None and target[1] in (None, arm):
                near = np.linalg.norm(f.tip[arm] - f.position[target[0]]) < self.params.grasp_reach_m
                if near and not f.held[arm].any():
                    self._count_empty(f.time_s)
            self._armed[arm] = f.opening[arm] > self.params.armed_opening_m or (self._armed[arm] and not closed)
        if f.any_held[rule.thing]:
            self.empty_grasps = 0
        limit = self.params.max_empty_grasps
        return f"{limit} empty grasps in a row" if self.empty_grasps >= limit else ""

    def _count_empty(self, time_s: float) -> None:
        self.empty_grasps += 1
        self.total_empty_grasps += 1
        self._restart_clock(time_s)

    def _wrong_order(self, f: Facts, rule: S.Stage) -> str:
        for thing in range(L.BOX):
            wrong = bool(f.any_held[thing]) and thing not in rule.may_hold
            finished = thing == S.STAGES[self.stage - 1].thing if self.stage else False
            limit_s = self.params.wrong_hold_s + (0.5 if finished else 0.0)
            if self._lasted(f"wrong {thing}", wrong, f.time_s, limit_s):
                return f"wrong order, {L.OBJECTS[thing]} taken"
        return ""

    def _lost(self, f: Facts, rule: S.Stage) -> str:
        thing = rule.thing
        name = L.OBJECTS[thing]
        if f.any_held[thing]:
            self._held_once.add(thing)
        fallen = f.position[thing, 2] < -0.05
        hopeless = not f.any_held[thing] and f.speed[thing] < S.STILL and not rule.safe(f, self.memory)
        if fallen or self._lasted("lost", hopeless, f.time_s, self.params.lost_s):
            return f"{name} dropped" if thing in self._held_once or fallen else f"{name} knocked away"
        return ""

    def _undone(self, f: Facts) -> str:
        """An earlier step's work that has been destroyed."""
        kept = (
            (1, 5, L.CASE, S.case_on_pad), (2, 5, L.MANUAL, S.manual_on_case), (3, 9, L.CABLE, S.cable_in_bay),
            (6, 9, L.ADAPTER, S.adapter_lies_in_bay), (7, 9, L.CASE, S.case_in_box), (8, 9, L.PHONE, S.phone_in_box),
        )  # fmt: skip
        for first, last, thing, holds in kept:
            broken = first <= self.stage <= last and not holds(f)
            if self._lasted(f"undone {first}", broken, f.time_s, 0.7):
                return f"{L.OBJECTS[thing]} moved out of its place"
        return ""

    def _slid(self, f: Facts) -> str:
        start, p = self.memory.box_start, self.params
        slide = 0.0 if start is None else float(np.hypot(*(f.position[L.BOX] - start)[:2]))
        if not self.memory.bracing:
            return "box knocked away" if slide > p.max_box_knock_m else ""
        if slide < p.max_box_slide_m:
            return ""
        return "box slid away" if S.braced(f) else "box slid away, not braced"

    def _restart_clock(self, time_s: float) -> None:
        self._best, self._best_time_s = np.inf, time_s

    def _stalled(self, f: Facts, rule: S.Stage) -> str:
        left = rule.left_to_go(f, self.memory)
        held = bool(f.any_held[rule.thing])
        if self._had and not held:
            self._best = np.inf  # a part let go or lost: progress is measured anew
        self._had = held
        if left < self._best - self.params.progress_m:
            self._best, self._best_time_s = left, f.time_s
        if f.time_s > self.params.max_episode_s:
            return f"time limit of {self.params.max_episode_s:g} s"
        if f.time_s - self._best_time_s > self.params.no_progress_s:
            return f"no progress for {self.params.no_progress_s:g} s"
        return ""
