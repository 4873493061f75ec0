"""The soak's arithmetic: a leak is seen, noise is not one."""

from __future__ import annotations

import os

import numpy as np
import pytest

from bench.soak import Sample, descriptors, settled, slope, take_sample


def test_a_leak_is_seen_and_noise_is_not() -> None:
    times_s, rng = np.arange(0.0, 900.0, 4.0), np.random.default_rng(0)
    noise = rng.normal(0, 2e5, len(times_s))
    leak = slope(times_s, 1e8 + noise + 1000.0 * times_s)
    assert leak.grows and leak.low < 1000.0 < leak.high
    inside = sum(
        found.low <= 0 <= found.high
        for found in (slope(times_s, 1e8 + rng.normal(0, 2e5, len(times_s))) for _ in range(200))
    )
    assert 180 <= inside <= 200
    with pytest.raises(ValueError, match="run longer"):
        slope(times_s[:10], times_s[:10])


def test_the_first_quarter_is_left_out() -> None:
    samples = [Sample(float(second), {}, {}) for second in range(101)]
    assert settled(samples)[0].time_s == 25.0


def test_a_sample_reads_this_process() -> None:
    before = take_sample({"me": [os.getpid()]})
    with open(os.devnull) as _, open(os.devnull):
        during = take_sample({"me": [os.getpid()]})
    assert during.descriptors["me"] == before.descriptors["me"] + 2 and during.rss_bytes["me"] > 1e6


def test_a_descriptor_that_is_open_for_a_moment_is_no_leak() -> None:
    counts = [10, 11] * 10 + [12, 10, 10, 11] * 5
    samples = [Sample(float(second), {}, {"x": count}) for second, count in enumerate(counts)]
    assert descriptors(samples) == (10.5, 10.5)
    assert descriptors([*samples, *[Sample(99.0, {}, {"x": 20})] * 10])[1] == 20
