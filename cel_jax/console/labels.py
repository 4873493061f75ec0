"""What may happen to an episode's label: given once, undone within the window, then final. Pure functions.

WAITING --give--> PENDING --window--> FINAL
   ^                 |
   +------undo-------+          WAITING --deadline--> PENDING as `discarded: no label`
"""

from __future__ import annotations

import dataclasses
import enum

from cel_jax.bus.errors import BusError
from cel_jax.data.episode import Label, Outcome

UNDO_S = 10.0
DEADLINE_AUTHOR, NO_LABEL = "deadline", "no label"
MAX_REASON_CHARS, MAX_AUTHOR_CHARS = 200, 64


class LabelRefused(BusError):
    """A label that contradicts what is on record, or that names no episode; the message names it."""

    kind = "label_refused"


class UnknownEpisode(LabelRefused):
    """No station has, and none had, an episode of this name."""

    kind = "unknown_episode"


class LabelPhase(enum.Enum):
    """Where an episode's label stands."""

    WAITING = "waiting"
    PENDING = "pending"
    FINAL = "final"


@dataclasses.dataclass(frozen=True)
class LabelState:
    """One finished episode. since_s: when it ended, was labelled or undone. label: of PENDING and FINAL.
    suggests: what the robot's own side would say."""

    episode: str
    station: str
    phase: LabelPhase
    since_s: float
    label: Label | None = None
    suggests: str = ""


def waiting(episode: str, station: str, now_s: float) -> LabelState:
    """A finished episode without a label."""
    return LabelState(episode, station, LabelPhase.WAITING, now_s)


def labelled(episode: str, station: str, label: Label) -> LabelState:
    """As it is found on record; `settle` says whether it is final by now."""
    return LabelState(episode, station, LabelPhase.PENDING, label.time_s, label)


def give(state: LabelState, label: Label) -> LabelState:
    """Raises LabelRefused where there is a label already."""
    if state.phase is not LabelPhase.WAITING:
        raise LabelRefused(already(state.episode, state.label, state.phase is LabelPhase.FINAL))
    return dataclasses.replace(state, phase=LabelPhase.PENDING, since_s=label.time_s, label=label)


def undo(state: LabelState, now_s: float) -> LabelState:
    """Raises LabelRefused where there is no label, or a final one."""
    if state.phase is LabelPhase.WAITING:
        raise LabelRefused(f"episode {state.episode} has no label to undo")
    if state.phase is LabelPhase.FINAL or now_s - state.since_s >= UNDO_S:
        raise LabelRefused(f"episode {state.episode}: its label is final, {UNDO_S:g} s are over")
    return dataclasses.replace(state, phase=LabelPhase.WAITING, since_s=now_s, label=None)


def settle(state: LabelState, now_s: float, deadline_s: float) -> LabelState:
    """What time alone does: a label becomes final, an episode that nobody labels is discarded."""
    age_s = now_s - state.since_s
    if state.phase is LabelPhase.PENDING and age_s >= UNDO_S:
        return dataclasses.replace(state, phase=LabelPhase.FINAL)
    if state.phase is LabelPhase.WAITING and age_s >= deadline_s:
        return give(state, Label(Outcome.DISCARD, DEADLINE_AUTHOR, now_s, NO_LABEL))
    return state


def close_early(state: LabelState) -> LabelState:
    """The run ends: nobody can undo any more."""
    return dataclasses.replace(state, phase=LabelPhase.FINAL) if state.phase is LabelPhase.PENDING else state


def already(episode: str, label: Label | None, final: bool) -> str:
    """Why a second label is refused."""
    said = f"{label.outcome.value} by {label.author}" if label is not None else "labelled"
    advice = "it is final" if final else f"undo it first, within {UNDO_S:g} s"
    return f"episode {episode} is already labelled {said}; {advice}"


def make_label(outcome: object, author: object, reason: object, now_s: float) -> Label:
    """A label from what a person typed. Raises LabelRefused saying what was expected."""
    if not isinstance(outcome, str) or outcome not in {one.value for one in Outcome}:
        raise LabelRefused(f"outcome {outcome!r:.40}: expected {', '.join(one.value for one in Outcome)}")
    who, why = check_author(author), reason.strip() if isinstance(reason, str) else None
    if why is None or len(why) > MAX_REASON_CHARS:
        raise LabelRefused(f"reason: expected text of at most {MAX_REASON_CHARS} characters, got {reason!r:.40}")
    if outcome == Outcome.DISCARD.value and not why:
        raise LabelRefused("a discard needs its reason: a bad reset, hardware, an operator's error")
    return Label(Outcome(outcome), who, now_s, why)


def check_author(author: object) -> str:
    """Raises LabelRefused for an empty or overlong name."""
    if not isinstance(author, str) or not 0 < len(author.strip()) <= MAX_AUTHOR_CHARS or not author.isprintable():
        raise LabelRefused(f"author {author!r:.40}: expected your name, at most {MAX_AUTHOR_CHARS} characters")
    if author.strip() == DEADLINE_AUTHOR:
        raise LabelRefused(f"author {author!r}: this name is the deadline's own; take another")
    return author.strip()
