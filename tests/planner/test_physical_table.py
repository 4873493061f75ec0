"""The packing table in simulated physics: what it says comes from the simulation; both harnesses solve tasks on it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mujoco")

from cel_jax.planner import sites
from cel_jax.planner.chat import tool_call
from cel_jax.planner.code_harness import CodeHarness, SandboxLimits
from cel_jax.planner.config import HarnessConfig
from cel_jax.planner.tabletop.interface import SkillError
from cel_jax.planner.tabletop.physical_world import PhysicalTabletop
from cel_jax.planner.tabletop.text_world import TextTabletop
from cel_jax.planner.tool_harness import Limits, ToolHarness
from tests.planner.test_harnesses import answer, code_chat, teacher_chat

ROOT = Path(__file__).resolve().parents[2]
TASK, LIMITS = "cable+adapter+case/open", Limits(max_turns=40, max_episode_s=120.0)


@pytest.fixture(scope="module")
def table() -> PhysicalTabletop:
    return PhysicalTabletop()


def move(table: PhysicalTabletop, part: str, *position: float) -> None:
    """Moves a part in the simulation, unknown to the table."""
    at = table.rig.physics.part_qpos[part]
    table.rig.physics.data.qpos[at : at + 3] = position


def grasp_of(table: PhysicalTabletop, part: str) -> dict[str, str]:
    thing = table.parts[part]
    return {"part": part, "arm": thing.side, "grasp": "top" if thing.pose == "flat" else "side"}


def test_the_scene_reads_as_the_text_models_does(table: PhysicalTabletop) -> None:
    text = TextTabletop()
    assert table.tasks() == text.tasks() and table.skills == text.skills
    for state in range(6):
        table.reset("cable+adapter+case+manual+phone/close", state, 0)
        text.reset("cable+adapter+case+manual+phone/close", state, 0)
        assert (table.instruction(), table.describe()) == (text.instruction(), text.describe())


def test_a_parts_place_is_read_from_the_simulation(table: PhysicalTabletop) -> None:
    table.reset(TASK, 1, 0)
    box = table.rig.facts.position[-1]
    move(table, "cable", box[0], box[1], 0.04)
    assert "cable: box." in table.describe()
    move(table, "cable", 0.2, 0.0, 0.02)
    assert "cable: tray." in table.describe()
    move(table, "cable", 0.3, 0.4, 0.02)
    assert "cable: left, " in table.describe()
    move(table, "cable", 0.3, 0.9, -0.3)
    assert "cable: floor." in table.describe()


def test_the_boxs_heading_is_read_from_the_simulation(table: PhysicalTabletop) -> None:
    table.reset(TASK, 1, 0)
    table.rig.physics.data.qpos[table.rig.physics.box_qpos + 2] = 0.5
    assert "Box turned." in table.describe()
    assert table.act("straighten", {}) == "The box is straight." and "Box straight." in table.describe()


def test_a_grasped_part_is_held_until_the_simulation_takes_it(table: PhysicalTabletop) -> None:
    table.reset(TASK, 2, 0)
    before = table.rig.facts.position[2].copy()
    arm = table.parts["cable"].side
    assert table.act("pick", grasp_of(table, "cable")) == f"The {arm} arm holds the cable."
    assert table.rig.facts.position[2][2] > before[2] + 0.15
    assert "Holding the cable." in table.describe()
    move(table, "cable", 0.3, -0.4, 0.02)
    assert "Hands empty." in table.describe()


def test_a_missed_grasp_is_said_and_nothing_is_held(table: PhysicalTabletop, monkeypatch: pytest.MonkeyPatch) -> None:
    table.reset(TASK, 2, 0)
    monkeypatch.setattr(table._work, "_noise", lambda: np.array([0.0, 0.0, 0.12]))
    arm = table.parts["cable"].side
    assert table.act("pick", grasp_of(table, "cable")) == f"The {arm} arm missed the cable."
    assert table.held is None and table.parts["cable"].place == "table"


def test_a_slick_part_needs_a_hard_squeeze(table: PhysicalTabletop) -> None:
    for part in ("manual", "phone"):
        table.reset("cable+manual+phone/open", 3, 0)
        assert "holds" not in table.act("pick", grasp_of(table, part))
        table.reset("cable+manual+phone/open", 3, 0)
        assert "holds" in table.act("pick", {**grasp_of(table, part), "grasp": "pinch"})


def test_what_falls_off_the_table_ends_the_trial(table: PhysicalTabletop) -> None:
    table.reset(TASK, 1, 0)
    move(table, "case", 0.3, 0.9, -0.3)
    assert table.act("straighten", {}) == "The case was dropped on the floor."
    assert table.finished and not table.success


def test_done_counts_what_lies_in_the_box(table: PhysicalTabletop) -> None:
    table.reset(TASK, 1, 0)
    x, y = table.rig.facts.position[-1][:2]
    for i, part in enumerate(("cable", "adapter", "case")):
        move(table, part, x, y, 0.02 + 0.02 * i)
    assert table.act("done", {}) == "The task is done." and table.success


def test_malformed_calls_move_nothing(table: PhysicalTabletop) -> None:
    table.reset(TASK, 1, 0)
    time_s, scene = table.rig.physics.data.time, table.describe()
    odd = {"part": 7, "arm": [], "grasp": None}
    for name, given in [("fly", {}), ("pick", {}), ("pick", odd), ("place", {"x": 1})]:
        with pytest.raises(SkillError):
            table.act(name, given)
    assert table.act("place", {"spot": "bay"}) == "There is nothing in the hands."
    assert table.rig.physics.data.time == time_s and table.describe() == scene


@pytest.mark.parametrize("content", ["no call", "```python\npick(\n```", "```python\npick('cable', 'up', 3)\n```"])
def test_bad_answers_end_as_the_planners_failure(table: PhysicalTabletop, content: str) -> None:
    limits = Limits(max_turns=3, max_episode_s=60.0)
    tools = ToolHarness(table, limits).run(TASK, 1, 0, lambda request: answer(content, tool_call("pick", "{oh")))
    assert tools.status == "malformed_calls"
    code = CodeHarness(table, limits, SandboxLimits()).run(TASK, 1, 0, lambda request: answer(content))
    assert not code.task_completed and code.exception == ""


def test_the_same_seed_gives_the_same_result(table: PhysicalTabletop) -> None:
    def played(which: PhysicalTabletop, attempt: int) -> tuple[list[str], bytes]:
        which.reset(TASK, 2, attempt)
        said = [which.act("pick", grasp_of(which, "cable")), which.act("place", {"spot": "tray"}), which.describe()]
        return said, which.rig.physics.data.qpos.tobytes()

    first = played(table, 0)
    assert first == played(table, 0) == played(PhysicalTabletop(), 0)
    assert first[1] != played(table, 1)[1]


@pytest.mark.slow
def test_the_teacher_packs_physically_through_both_harnesses(table: PhysicalTabletop) -> None:
    tools, code = ToolHarness(table, LIMITS), CodeHarness(table, LIMITS, SandboxLimits())
    won = 0
    for state in range(6):
        ended = tools.run(TASK, state, 0, teacher_chat(table, state))
        coded = code.run(TASK, state, 0, code_chat(table, state))
        assert (ended.status == "success") is coded.task_completed
        won += coded.task_completed
    assert won >= 4


def test_configuration_chooses_the_table() -> None:
    assert isinstance(sites.make_table(HarnessConfig(tabletop="physical")), PhysicalTabletop)
    assert isinstance(sites.make_table(HarnessConfig()), TextTabletop)
    with pytest.raises(ValueError, match="text or physical"):
        sites.make_table(HarnessConfig(tabletop="marble"))


def test_without_mujoco_the_text_model_runs_and_the_physical_one_names_the_extra() -> None:
    program = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "mujoco":
            raise ModuleNotFoundError("No module named 'mujoco'", name="mujoco")
sys.meta_path.insert(0, Absent())
from cel_jax.planner import sites
from cel_jax.planner.config import HarnessConfig
sites.make_table(HarnessConfig())
try:
    sites.make_table(HarnessConfig(tabletop="physical"))
except sites.SimulatorMissing as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "harness.tabletop=physical needs MuJoCo: pip install 'cel-jax[sim]'"
