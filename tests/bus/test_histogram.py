"""Quantiles from logarithmic bins."""

import numpy as np
import pytest

from cel_jax.bus.histogram import Histogram


def test_quantiles_are_within_a_bin_of_the_samples() -> None:
    times_s, found = np.random.default_rng(0).lognormal(-6.0, 1.0, 5000), Histogram()
    for one in times_s:
        found.add(float(one))
    for share in (0.5, 0.9, 0.99):
        true_s = float(np.quantile(times_s, share, method="inverted_cdf"))
        assert true_s <= found.quantile_s(share) <= true_s * 2 ** (1 / 8) * 1.001
    assert found.total == 5000


def test_parts_add_up_and_a_taken_one_is_empty() -> None:
    one, other = Histogram(), Histogram()
    one.add(0.001)
    other.add(0.1)
    other.add(0.0)
    taken = other.take()
    one.update(Histogram({int(index): count for index, count in taken.items()}))
    assert one.total == 3 and other.total == 0
    with pytest.raises(ValueError, match="no quantiles"):
        other.quantile_s(0.5)
