"""The ten steps of Phone Packaging (the paper's appendix, "Task success and failure criteria"), as geometry.

Each step says when it is done, what distance is left (for "no substantive progress"), what the grippers may hold, what
they are about to grasp, and which object's loss ends the trial. Numbers in metres and radians.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from cel_jax.robots.sim import layout as L
from cel_jax.robots.sim.facts import Facts, in_interior, on_pad

UPRIGHT_RAD, FLAT_RAD, LYING_RAD = 0.16, 0.13, 1.35
MID_AIR_Z = 0.125  # the adapter's centre while it changes hands
BRACE_SPOT = np.array([0.0, -L.BOX_INNER_HALF[1] - L.BOX_WALL - 0.006, 0.035])
SEATED_GAP = 0.003
CLEAR_SHIFT = 0.012
STILL = 0.03  # metres per second


@dataclasses.dataclass
class Memory:
    """What a trial remembers beyond the present moment."""

    adapter_stood: bool = False
    lid_cleared: bool = False
    lid_grasped: bool = False
    lid_start: np.ndarray | None = None
    box_start: np.ndarray | None = None
    bracing: bool = False


@dataclasses.dataclass(frozen=True)
class Stage:
    """One step. `grasp(facts, memory)`: the object to grasp now and the arm (None: either), or None."""

    name: str
    thing: int
    may_hold: frozenset[int]
    done: Callable[[Facts, Memory], bool]
    left_to_go: Callable[[Facts, Memory], float]
    grasp: Callable[[Facts, Memory], tuple[int, int | None] | None]
    safe: Callable[[Facts, Memory], bool]
    braced: bool = False


def _free(f: Facts, thing: int) -> bool:
    return not f.any_held[thing]


def _far(f: Facts, thing: int, target: np.ndarray, arm: int | None = None) -> float:
    """Distance left in a pick and place: first to the object, then with it to the target."""
    carry = float(np.linalg.norm(f.position[thing] - target))
    if f.any_held[thing]:
        return carry
    tips = f.tip if arm is None else f.tip[arm : arm + 1]
    return 1.0 + carry + float(np.linalg.norm(tips - f.position[thing], axis=1).min())


def _world(f: Facts, in_box: tuple[float, float, float]) -> np.ndarray:
    return f.position[L.BOX] + f.rotation[L.BOX] @ np.asarray(in_box)


def _pad_point(z: float) -> np.ndarray:
    return np.array([*L.PAD_XY, z])


def case_on_pad(f: Facts) -> bool:
    """The case lies flat on the pad to the right of the box."""
    low = abs(f.position[L.CASE, 2] - 2 * L.PAD_HALF[2] - L.CASE_HALF[2]) < 0.004
    return on_pad(f, L.CASE, 0.030) and low and f.tilt_rad(L.CASE) < FLAT_RAD


def manual_on_case(f: Facts) -> bool:
    """The manual lies flat on the case."""
    x, y, z = f.offset(L.MANUAL, L.CASE)
    return bool(abs(x) < 0.030 and abs(y) < 0.024 and abs(z - L.CASE_HALF[2] - L.MANUAL_HALF[2]) < 0.004)


def cable_in_bay(f: Facts) -> bool:
    """The cable lies in its compartment, below the divider's top."""
    x, y, z = f.in_box[L.CABLE]
    low, high = L.CABLE_BAY_X
    return bool(low < x < high and abs(y) < L.BOX_INNER_HALF[1] and z < L.LEDGE_Z)


def adapter_stands_in_bay(f: Facts) -> bool:
    """The adapter stands upright on the floor of its compartment."""
    x, y, z = f.in_box[L.ADAPTER]
    low, high = L.ADAPTER_BAY_X
    level = abs(z - L.BOX_FLOOR - L.ADAPTER_HALF[2]) < 0.006
    return bool(low < x < high and abs(y) < L.BOX_INNER_HALF[1] and level and f.lean_rad(L.ADAPTER) < UPRIGHT_RAD)


def adapter_lies_in_bay(f: Facts) -> bool:
    """The adapter lies on its side in its compartment."""
    x, y, z = f.in_box[L.ADAPTER]
    low, high = L.ADAPTER_BAY_X
    return bool(low < x < high and abs(y) < L.BOX_INNER_HALF[1] and z < L.LEDGE_Z and f.lean_rad(L.ADAPTER) > LYING_RAD)


def case_in_box(f: Facts) -> bool:
    """Case and manual lie flat in the box, on the ledges."""
    flat = f.tilt_rad(L.CASE) < FLAT_RAD and f.tilt_rad(L.MANUAL) < FLAT_RAD
    low = f.in_box[L.CASE, 2] < L.LEDGE_Z + 0.016 and f.in_box[L.MANUAL, 2] < L.LEDGE_Z + 0.024
    return bool(flat and low and in_interior(f, L.CASE) and in_interior(f, L.MANUAL))


def phone_in_box(f: Facts) -> bool:
    """The phone lies flat in the box, its upper face below where the lid's plug comes."""
    low = f.in_box[L.PHONE, 2] < L.BOX_RIM_Z - L.LID_PLUG_DEPTH - 0.004
    return bool(in_interior(f, L.PHONE) and f.lean_rad(L.PHONE) < FLAT_RAD and low)


def lid_over_box(f: Facts) -> bool:
    """The lid rests on the box: at an angle, or already seated."""
    x, y, z = f.in_box[L.LID]
    over = abs(x) < 0.035 and abs(y) < 0.040 and L.BOX_RIM_Z - 0.006 < z < L.BOX_RIM_Z + 0.020
    return bool(over and f.tilt_rad(L.LID) < 0.35)


def lid_seated(f: Facts) -> bool:
    """The lid is on the box: flange on the rim, level."""
    x, y, z = f.in_box[L.LID]
    return bool(abs(z - L.BOX_RIM_Z) < SEATED_GAP and f.tilt_rad(L.LID) < 0.035 and abs(x) < 0.02 and abs(y) < 0.02)


def braced(f: Facts) -> bool:
    """The right gripper stands at the outer side of the box's right wall, where it stops the box from sliding."""
    x, y, z = f.tip_in_box[L.RIGHT]
    reach = BRACE_SPOT[1] - y
    return bool(abs(x) < L.BOX_INNER_HALF[0] and -0.012 < reach < 0.022 and -0.01 < z < L.BOX_RIM_Z)


def contents_in_place(f: Facts) -> bool:
    """Everything is where the steps put it."""
    return cable_in_bay(f) and adapter_lies_in_bay(f) and case_in_box(f) and phone_in_box(f)


def _brace_left(f: Facts) -> float:
    return 0.0 if braced(f) else float(np.linalg.norm(f.tip_in_box[L.RIGHT] - BRACE_SPOT))


def _case_safe(f: Facts, m: Memory) -> bool:
    """The case can still be grasped: on its stack or on the pad."""
    z = f.position[L.CASE, 2]
    return bool(z > L.PEDESTAL_Z - 0.002 or (on_pad(f, L.CASE, 0.04) and z > 2 * L.PAD_HALF[2] - 0.002))


def _manual_safe(f: Facts, m: Memory) -> bool:
    return bool(f.position[L.MANUAL, 2] > L.PEDESTAL_Z - 0.002 or manual_on_case(f))


def _cable_safe(f: Facts, m: Memory) -> bool:
    """On its base within reach on the table, or in the compartment."""
    x, y = f.position[L.CABLE, :2]
    x0, x1, y0, y1 = L.REACH_XY
    outside = not (abs(f.in_box[L.CABLE, 0]) < 0.12 and abs(f.in_box[L.CABLE, 1]) < 0.10)
    return cable_in_bay(f) or bool(x0 < x < x1 and y0 < y < y1 and f.lean_rad(L.CABLE) < 0.3 and outside)


def _adapter_in_rack(f: Facts, m: Memory) -> bool:
    return bool(f.position[L.ADAPTER, 2] > L.ADAPTER_RACK_Z and f.lean_rad(L.ADAPTER) < 0.4)


def _never(f: Facts, m: Memory) -> bool:
    return False


def _adapter_in_box(f: Facts, m: Memory) -> bool:
    """Standing in the compartment, or lying there after it stood."""
    x, y, z = f.in_box[L.ADAPTER]
    inside = L.ADAPTER_BAY_X[0] - 0.004 < x < L.ADAPTER_BAY_X[1] + 0.004 and abs(y) < L.BOX_INNER_HALF[1] and z < 0.06
    return bool(inside and (m.adapter_stood or f.lean_rad(L.ADAPTER) < 0.5))


def _stack_safe(f: Facts, m: Memory) -> bool:
    return bool(case_on_pad(f) and manual_on_case(f)) or bool(in_interior(f, L.CASE) and in_interior(f, L.MANUAL))


def _phone_safe(f: Facts, m: Memory) -> bool:
    """On the lid, across the rim or in the box."""
    x, y, z = f.in_box[L.PHONE]
    inside = abs(x) < L.BOX_INNER_HALF[0] and abs(y) < L.BOX_INNER_HALF[1]
    return bool(inside or (z > L.BOX_RIM_Z - 0.012 and f.tilt_rad(L.PHONE) < 1.0))


def _lid_safe(f: Facts, m: Memory) -> bool:
    return bool(f.position[L.LID, 2] > L.BOX_RIM_Z - 0.010 and f.tilt_rad(L.LID) < 0.5)


def _adapter_place_left(f: Facts, m: Memory) -> float:
    bay = _world(f, (sum(L.ADAPTER_BAY_X) / 2, 0.0, L.BOX_FLOOR + L.ADAPTER_HALF[2]))
    if not m.adapter_stood:
        return 1.0 + float(np.linalg.norm(f.position[L.ADAPTER] - bay))
    return 0.3 * (np.pi / 2 - f.lean_rad(L.ADAPTER)) + float(np.linalg.norm(f.tip[L.RIGHT] - f.position[L.ADAPTER])) / 2


def _phone_left(f: Facts, m: Memory) -> float:
    flat = _world(f, (0.0, 0.0, L.BOX_RIM_Z - 0.03))
    push = float(np.linalg.norm(f.position[L.PHONE] - flat)) + 0.03 * f.lean_rad(L.PHONE)
    return _brace_left(f) + push + float(np.linalg.norm(f.tip[L.LEFT] - f.position[L.PHONE]))


def _lid_left(f: Facts, m: Memory) -> float:
    goal = _world(f, (0.0, 0.017, L.BOX_RIM_Z + 0.01))
    carry = float(np.linalg.norm(f.position[L.LID] - goal))
    if f.held[L.LEFT, L.LID]:
        return carry
    reach = 1.0 + float(np.linalg.norm(f.tip[L.LEFT] - f.position[L.LID]))
    return reach if m.lid_cleared else 2.0 + reach - lid_shift(f, m)


def _close_left(f: Facts, m: Memory) -> float:
    seat = _world(f, (0.0, 0.0, L.BOX_RIM_Z))
    gap = float(np.linalg.norm(f.position[L.LID] - seat)) + 0.1 * f.tilt_rad(L.LID)
    return _brace_left(f) + 2.0 * gap + float(np.linalg.norm(f.tip[L.LEFT] - f.position[L.LID]))


def lid_shift(f: Facts, m: Memory) -> float:
    """How far the lid has moved away from the box since the step began."""
    return 0.0 if m.lid_start is None else float(f.in_box[L.LID, 1] - m.lid_start[1])


def _lid_grasp(f: Facts, m: Memory) -> tuple[int, int | None] | None:
    return (L.LID, L.LEFT) if m.lid_cleared else None


def _nothing(f: Facts, m: Memory) -> None:
    return None


def _pick(thing: int, arm: int | None = None) -> Callable[[Facts, Memory], tuple[int, int | None] | None]:
    return lambda f, m: None if f.any_held[thing] else (thing, arm)


def _set(*things: int) -> frozenset[int]:
    return frozenset(things)


STAGES: tuple[Stage, ...] = (
    Stage(
        "step 1 phone case", L.CASE, _set(L.CASE),
        lambda f, m: case_on_pad(f) and _free(f, L.CASE),
        lambda f, m: _far(f, L.CASE, _pad_point(0.018)), _pick(L.CASE), _case_safe,
    ),
    Stage(
        "step 2 manual", L.MANUAL, _set(L.MANUAL),
        lambda f, m: manual_on_case(f) and case_on_pad(f) and _free(f, L.MANUAL),
        lambda f, m: _far(f, L.MANUAL, f.position[L.CASE]), _pick(L.MANUAL), _manual_safe,
    ),
    Stage(
        "step 3 charging cable", L.CABLE, _set(L.CABLE),
        lambda f, m: cable_in_bay(f) and _free(f, L.CABLE),
        lambda f, m: _far(f, L.CABLE, _world(f, (sum(L.CABLE_BAY_X) / 2, 0.0, 0.016))), _pick(L.CABLE), _cable_safe,
    ),
    Stage(
        "step 4 charging adapter", L.ADAPTER, _set(L.ADAPTER),
        lambda f, m: bool(f.held[L.LEFT, L.ADAPTER]) and f.position[L.ADAPTER, 2] > MID_AIR_Z,
        lambda f, m: _far(f, L.ADAPTER, f.position[L.ADAPTER] * [1, 1, 0] + [0, 0, MID_AIR_Z], L.LEFT),
        _pick(L.ADAPTER, L.LEFT), _adapter_in_rack,
    ),
    Stage(
        "step 5 handover", L.ADAPTER, _set(L.ADAPTER),
        lambda f, m: bool(f.held[L.RIGHT, L.ADAPTER] and not f.held[L.LEFT, L.ADAPTER]),
        lambda f, m: float(np.linalg.norm(f.tip[L.RIGHT] - f.position[L.ADAPTER])),
        lambda f, m: None if f.held[L.RIGHT, L.ADAPTER] else (L.ADAPTER, L.RIGHT), _never,
    ),
    Stage(
        "step 6 adapter placement", L.ADAPTER, _set(L.ADAPTER),
        lambda f, m: m.adapter_stood and adapter_lies_in_bay(f) and _free(f, L.ADAPTER),
        _adapter_place_left, _nothing, _adapter_in_box,
    ),
    Stage(
        "step 7 case into box", L.CASE, _set(L.CASE, L.MANUAL),
        lambda f, m: case_in_box(f) and _free(f, L.CASE),
        lambda f, m: _far(f, L.CASE, _world(f, (0.0, 0.0, L.LEDGE_Z))), _pick(L.CASE), _stack_safe,
    ),
    Stage(
        "step 8 phone into box", L.PHONE, _set(),
        lambda f, m: phone_in_box(f) and braced(f) and not f.touched[L.LEFT, L.PHONE],
        _phone_left, _nothing, _phone_safe, braced=True,
    ),
    Stage(
        "step 9 lid over box", L.LID, _set(L.LID),
        lambda f, m: m.lid_grasped and lid_over_box(f) and _free(f, L.LID) and braced(f),
        _lid_left, _lid_grasp, _lid_safe, braced=True,
    ),
    Stage(
        "step 10 closing", L.LID, _set(L.LID),
        lambda f, m: lid_seated(f) and braced(f) and not f.touched[:, L.LID].any(),
        _close_left, _nothing, _lid_safe, braced=True,
    ),
)  # fmt: skip
