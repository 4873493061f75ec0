"""Action chunks relative to the state at the chunk's start, and back (openpi's DeltaActions).

Shape letters: H horizon, S state numbers, A action numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def to_delta(actions: Any, state: Any, mask: Sequence[bool]) -> Any:
    """actions [.., H, A] absolute, state [.., S] -> [.., H, A] with the masked dimensions relative to `state`.

    The same current state is subtracted at all H steps. mask: up to A booleans, True for joint targets; a
    shorter mask leaves the rest absolute. Works where S != A as long as the last True lies below both.
    Inputs are not changed. Raises ValueError where the mask does not fit. Takes numpy or jax arrays.
    """
    return actions - _offset(actions, state, mask)


def to_absolute(actions: Any, state: Any, mask: Sequence[bool]) -> Any:
    """The inverse of `to_delta`, with the same un-normalised state."""
    return actions + _offset(actions, state, mask)


def _offset(actions: Any, state: Any, mask: Sequence[bool]) -> Any:
    """[.., 1, A]: the state where the mask is True, 0 elsewhere."""
    action_dim, state_dim = actions.shape[-1], state.shape[-1]
    index = _state_index(mask, state_dim, action_dim)
    chosen = np.zeros(action_dim, bool)
    chosen[: len(mask)] = np.asarray(mask, bool)
    xp = np if isinstance(state, np.ndarray) else state.__array_namespace__()
    return xp.where(chosen, state[..., index], 0)[..., None, :].astype(actions.dtype)


def _state_index(mask: Sequence[bool], state_dim: int, action_dim: int) -> np.ndarray:
    """int [A]: which state number belongs to each action; actions beyond the state are masked out anyway."""
    covered = max((i + 1 for i, on in enumerate(mask) if on), default=0)
    if len(mask) > action_dim or covered > state_dim:
        raise ValueError(
            f"delta mask of {len(mask)} entries (last True at {covered - 1}) does not fit {action_dim} action and "
            f"{state_dim} state numbers; check delta_mask in the robot's features"
        )
    return np.minimum(np.arange(action_dim), state_dim - 1)
