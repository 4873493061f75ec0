"""Operator styles: how well and how fast a scripted demonstrator works. Noise is the failure knob.

The paper's Table 13 has people who succeed in 25 to 95 % of their trials; measured here: 30 (finn) to 100 % (ada).
`mixed` leaves finn and gus out.
"""

from __future__ import annotations

import dataclasses
import difflib


@dataclasses.dataclass(frozen=True)
class OperatorStyle:
    """One operator. noise_mm: standard deviation of each horizontal coordinate of each grasp and placement.

    miss_probability: of a deliberate missed grasp (then corrected) per pick. pause_probability: of a hesitation at a
    step transition, geometric between 0.3 and 2.5 s. speed: factor on every speed. careless_stages: steps (0..9) that
    are done with careless_noise_mm in place of noise_mm: a bad habit in an otherwise careful operator.
    """

    name: str
    noise_mm: float = 0.0
    miss_probability: float = 0.0
    pause_probability: float = 0.0
    speed: float = 1.0
    careless_stages: tuple[int, ...] = ()
    careless_noise_mm: float = 0.0

    def noise_at(self, stage: int) -> float:
        """Millimetres of noise in step `stage`."""
        return self.careless_noise_mm if stage in self.careless_stages else self.noise_mm


OPERATORS: dict[str, OperatorStyle] = {
    style.name: style
    for style in (
        OperatorStyle("exact"),
        OperatorStyle("ada", noise_mm=1.5, miss_probability=0.05, pause_probability=0.2, speed=1.0),
        OperatorStyle("ben", noise_mm=3.0, miss_probability=0.10, pause_probability=0.3, speed=1.1),
        OperatorStyle("chen", noise_mm=2.0, miss_probability=0.15, pause_probability=0.4, speed=0.85),
        OperatorStyle("dana", noise_mm=4.5, miss_probability=0.10, pause_probability=0.2, speed=1.2),
        OperatorStyle("eli", noise_mm=6.0, miss_probability=0.20, pause_probability=0.5, speed=0.9),
        OperatorStyle("finn", noise_mm=9.0, miss_probability=0.10, pause_probability=0.3, speed=1.0),
        OperatorStyle(
            "gus",
            noise_mm=1.5,
            miss_probability=0.05,
            pause_probability=0.2,
            careless_stages=(5,),
            careless_noise_mm=25.0,
        ),
    )
}
MIXED = ("ada", "ben", "chen", "dana", "eli")


def operator(name: str) -> OperatorStyle:
    """The named operator; an unknown name is refused with the nearest one."""
    if name not in OPERATORS:
        near = difflib.get_close_matches(name, OPERATORS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown operator {name!r}; expected one of {sorted(OPERATORS)} or 'mixed'{hint}")
    return OPERATORS[name]


def operators(name: str) -> tuple[OperatorStyle, ...]:
    """The operators of a name: one, or the mix that gives demonstrations for `mixed`."""
    return tuple(OPERATORS[n] for n in MIXED) if name == "mixed" else (operator(name),)
