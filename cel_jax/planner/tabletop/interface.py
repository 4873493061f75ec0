"""What a tabletop offers to a harness: a scene, an instruction, frozen skills, and whether the task is done."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol


class SkillError(ValueError):
    """A call that names no skill, or with arguments that it does not take. The planner is told; nothing moves."""


@dataclasses.dataclass(frozen=True)
class Skill:
    """One frozen skill. arguments: name -> allowed values."""

    name: str
    description: str
    arguments: Mapping[str, tuple[str, ...]]

    def check(self, given: Mapping[str, Any]) -> None:
        """Raises SkillError saying what was expected."""
        if set(given) != set(self.arguments):
            raise SkillError(f"{self.name} takes {sorted(self.arguments)}, got {sorted(map(str, given))}")
        for name, allowed in self.arguments.items():
            if given[name] not in allowed:
                raise SkillError(f"{self.name}: {name} must be one of {', '.join(allowed)}, got {given[name]!r}")


class Tabletop(Protocol):
    """One scene at a time. The same (task, initial state, attempt) gives the same scene and the same luck."""

    @property
    def skills(self) -> tuple[Skill, ...]: ...

    def tasks(self) -> tuple[str, ...]: ...

    def reset(self, task: str, initial_state: int, attempt: int) -> None: ...

    def instruction(self) -> str: ...

    def describe(self) -> str: ...

    def act(self, name: str, arguments: Mapping[str, Any]) -> str: ...

    @property
    def finished(self) -> bool: ...

    @property
    def success(self) -> bool: ...


def find_skill(skills: tuple[Skill, ...], name: str, arguments: Mapping[str, Any]) -> Skill:
    """The named skill with its arguments checked. Raises SkillError."""
    for skill in skills:
        if skill.name == name:
            skill.check(arguments)
            return skill
    raise SkillError(f"there is no skill {name!r}; there are {', '.join(skill.name for skill in skills)}")
