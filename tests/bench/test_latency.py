"""The arithmetic of the latency bench, and one observation over plain TCP and CURVE."""

from __future__ import annotations

import numpy as np
import pytest

from bench import latency, latency_round_trip
from bench.latency_peers import messages_s, round_trips


def test_samples_go_to_the_blocks_in_which_they_began() -> None:
    taken = np.array([[0.5, 1.0], [1.5, 2.0], [2.5, 3.0], [3.5, 4.0]])
    assert latency.pick(taken, [(0.0, 1.0, False), (2.0, 3.0, False)]).tolist() == [1.0, 3.0]
    assert latency.pick(taken, []).size == 0


def test_a_wrong_checksum_is_no_measurement() -> None:
    with pytest.raises(ValueError, match="expected 8"):
        round_trips(lambda: 7, 8, 3)
    calls = []
    assert messages_s(lambda: calls.append(1) or (lambda: 1), 0.01, 4) > 0 and len(calls) >= 5


def test_both_ratios_are_against_the_better_peer() -> None:
    def row(peer: str, p50_ms: float, rate: float) -> dict:
        return {"peer": peer, "p50_ms": p50_ms, "p99_ms": 9.0, "messages_s": rate, "encryption": "none"}

    rows = [row("plain", 1.0, 900.0), row("CURVE", 2.0, 400.0), row("agentlace", 6.0, 150.0), row("grpc", 3.0, 450.0)]
    found = {one.figure: one.value for one in latency.peer_figures(rows)}
    assert found["better peer's p50 over ours, plain"] == 3.0
    assert found["our messages/s, plain, over the better peer's"] == 2.0
    assert len(latency.peer_figures(rows[:2])) == 6  # no peers, no ratios


def test_a_peer_that_is_not_installed_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert latency_round_trip.peers("/nowhere/python", 1, 0.1) == []
    assert "agentlace: skipped" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("with_keys", [False, True])
def test_an_observation_comes_whole_plain_and_with_keys(with_keys: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (latency_round_trip.endpoints_module, latency_round_trip.client_module):
        monkeypatch.setattr(module, "require_keys", module.require_keys)  # plain TCP is closed again afterwards
    found = latency_round_trip.ours(with_keys, 20, 0.2)
    assert found["samples"] == 20 and found["p50_ms"] > 0 and found["messages_s"] > 0
