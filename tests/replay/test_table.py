"""One conformance suite on both tables; Reverb's part runs in the environment that has it."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from cel_jax.replay.priorities import WeightUpdate
from cel_jax.replay.table import make_table, reverb_is_installed
from cel_jax.replay.window_index import draw
from tests.replay import conformance
from tests.replay.episodes import make_episode

ROOT = Path(__file__).resolve().parents[2]
REVERB_PYTHON = Path(os.environ.get("CEL_REVERB_PYTHON", ROOT / ".venv-reverb/bin/python"))


CHECKS = dict(conformance.checks())


@pytest.mark.parametrize("name", CHECKS)
def test_memory_table(name: str) -> None:
    CHECKS[name](lambda horizon, share=0.0: make_table("memory", horizon, share))


def in_reverb_environment(*arguments: str, timeout_s: float = 200.0) -> subprocess.CompletedProcess[str]:
    if not REVERB_PYTHON.exists():
        pytest.skip(
            f"no Reverb environment at {REVERB_PYTHON}: python3.11 -m venv .venv-reverb && "
            ".venv-reverb/bin/pip install -r requirements/reverb.txt, or set CEL_REVERB_PYTHON"
        )
    return subprocess.run(
        [REVERB_PYTHON, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False
    )


@pytest.mark.slow
def test_reverb_table() -> None:
    done = in_reverb_environment("-m", "tests.replay.conformance", "reverb")
    passed = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("passed ")}
    assert done.returncode == 0 and passed == set(CHECKS), done.stderr[-3000:]


@pytest.mark.slow
def test_store_and_codec_run_in_the_reverb_environment() -> None:
    """numpy 1.26: the same tests that run here."""
    files = [
        "tests/replay/test_store.py",
        "tests/replay/test_priorities.py",
        "tests/data/test_episode_codec.py",
        "tests/data/test_lerobot_v3.py",
    ]
    done = in_reverb_environment("-m", "pytest", "-m", "not slow", *files)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-3000:] + done.stderr[-2000:]


def test_auto_takes_reverb_where_it_is_installed(capsys) -> None:
    table = make_table("auto", 4)
    expected = "reverb" if reverb_is_installed() else "memory"
    assert table.name == expected and f"replay table: {expected} (asked for auto)" in capsys.readouterr().out
    table.close()
    with pytest.raises(ValueError, match="expected `auto`"):
        make_table("redis", 4)


@pytest.mark.skipif(reverb_is_installed(), reason="Reverb is installed here")
def test_reverb_where_it_is_missing_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match=r"requirements/reverb.txt"):
        make_table("reverb", 4)


def test_the_papers_window_of_350_000_chunks() -> None:
    """Draws follow the weights by episode (false-alarm rate 1e-6, fixed seed) after events, evictions and a restart."""
    table, length, rng = make_table("memory", 30), 3500, np.random.default_rng(3)
    blank = make_episode("x", length)
    for i in range(105):
        episode = dataclasses.replace(blank, header=dataclasses.replace(blank.header, id=f"e{i:03d}"))
        table.insert_episode(episode, np.arange(length, dtype=np.int32), rng.random(length))
    assert len(table.evict(350_000)) == 5 and table.chunks == table.frames == 350_000
    for i in rng.permutation(100)[:40]:
        table.set_weights([WeightUpdate(f"e{i + 5:03d}", 1000, rng.random(500) * 30)])
    share = np.array([table.weights(key).sum() for key in table.episodes])
    batch = table.sample(100_000, 1)
    numbers = {key: number for number, key in enumerate(table.episodes)}
    counts = np.bincount([numbers[key] for key, _ in batch.keys], minlength=100)
    assert not conformance.chi_square_alarm(counts, share / share.sum())
    assert conformance.chi_square_alarm(counts, np.full(100, 0.01))
    fresh = make_table("memory", 30)
    for key in table.episodes:
        episode = dataclasses.replace(blank, header=dataclasses.replace(blank.header, id=key))
        fresh.insert_episode(episode, np.arange(length, dtype=np.int32), table.weights(key))
    assert fresh.sample(1024, 5).keys == table.sample(1024, 5).keys


class _EdgeRandom(np.random.Generator):
    """A generator whose uniform numbers are the ends of [0, 1)."""

    def random(self, *_: object) -> np.ndarray:  # type: ignore[override]
        return np.array([0.0, np.nextafter(1.0, 0.0)])


@pytest.mark.parametrize(
    "weights, expected",
    [([0.0, 0.0, 1.0, 0.0], [2, 2]), ([0.0, 3.0, 0.0, 1e-300, 0.0], [1, 1]), ([0.1] * 257 + [0.0], [0, 256])],
)
def test_no_random_number_draws_a_zero_weight(weights: list[float], expected: list[int]) -> None:
    table = make_table("memory", conformance.H)
    conformance.put(table, "a", len(weights), weights)
    picked = draw(table._index.flat(), 2, 0.0, _EdgeRandom(np.random.PCG64(0)))
    assert picked.tolist() == expected


def test_the_chi_square_check_can_fail() -> None:
    """The suite's own instrument: a tenth more weight on half of the chunks must alarm at the suite's sample size."""
    rng, n = np.random.default_rng(0), 40
    skewed = np.where(np.arange(n) < n // 2, 1.1, 0.9) / n
    assert conformance.chi_square_alarm(rng.multinomial(20_000, skewed), np.full(n, 1 / n))
    assert not conformance.chi_square_alarm(rng.multinomial(20_000, np.full(n, 1 / n)), np.full(n, 1 / n))
