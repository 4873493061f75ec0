"""Takes each identity check of the paper's Table 2 out of a copy of the package and sees the row's test fail."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True)
class Mutation:
    """`old` stands once in `file`; with `new` in its place the check is gone, and `test` must fail."""

    row: int
    file: str
    old: str
    new: str
    test: str


PEERS, AGENT, CLIENT, SERVER = "recovery/peers.py", "recovery/agent_workers.py", "bus/client.py", "bus/server.py"
CHANNELS, HOME = "bus/channels.py", "bus/home.py"
IS_CURRENT = "is None or self._check(record.identity) is not Response.ACCEPT:"
IS_RETIRED = """if self.registry.is_dead(request.sender.worker):
            self.counters"""
MUTATIONS = (
    Mutation(1, PEERS, "held.epoch) is Response.ACCEPT:", "held.epoch) is not None:", "row_1_a_record_of_a_dead"),
    Mutation(1, PEERS, "if version <= self.version:", "if False:", "row_1_a_late_table"),
    Mutation(2, AGENT, "if response is Response.ACCEPT and slot", "if slot", "row_2_a_late_failure_report"),
    Mutation(2, AGENT, IS_CURRENT, "is None:", "row_2_a_late_result"),
    Mutation(3, SERVER, "if request.epoch < self.epoch:", "if False:", "row_3_the_replacement"),
    Mutation(3, CLIENT, "call.is_sent and call.epoch < epoch, Epoch", "False, Epoch", "row_3_a_wait_on_the_old"),
    Mutation(4, CHANNELS, "None and _step_id(reply.header) == id:", "None:", "row_4_an_action"),
    Mutation(4, HOME, "if predecessor is not None:", "if False:", "row_4_an_observation"),
    Mutation(4, HOME, IS_RETIRED, IS_RETIRED.replace("self.registry.is_dead(request.sender.worker)", "False"),
             "row_4_an_answer"),
    Mutation(5, CLIENT, "fresh_frames(self._epoch)", "fresh_frames(call.epoch)", "row_5_transfers_that_waited"),
    Mutation(5, CLIENT, "if reply.is_error and self._rejoined(reply):", "if False:", "row_5_transfers_on_a_connection"),
)  # fmt: skip


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy")
    for part in ("cel_jax", "tests"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def _run(folder: Path, test: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/recovery/test_table2.py"]
    return subprocess.run([*words, "-k", test], cwd=folder, env=env, capture_output=True, text=True, timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: f"row {one.row}: {one.old[:40]!r}")
def test_without_its_check_the_rows_test_fails(copy: Path, mutation: Mutation) -> None:
    path = copy / "cel_jax" / mutation.file
    whole = path.read_text()
    assert whole.count(mutation.old) == 1, f"{mutation.file}: the check {mutation.old!r} is not there once"
    path.write_text(whole.replace(mutation.old, mutation.new))
    try:
        broken = _run(copy, mutation.test)
    finally:
        path.write_text(whole)
    assert broken.returncode == 1 and "FAILED tests" in broken.stdout, broken.stdout[-2000:] + broken.stderr[-2000:]


@pytest.mark.slow
def test_with_all_checks_the_copy_passes(copy: Path) -> None:
    done = _run(copy, "row")
    assert done.returncode == 0, done.stdout[-2000:]


def test_every_row_of_the_table_loses_a_check() -> None:
    assert {mutation.row for mutation in MUTATIONS} == {1, 2, 3, 4, 5}
