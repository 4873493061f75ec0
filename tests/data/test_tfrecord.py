import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cel_jax.data import tfrecord
from tests.data import tiny_datasets as tiny


def test_known_checksums() -> None:
    """RFC 3720, B.4, and the usual check word."""
    assert tfrecord.crc32c(b"123456789") == 0xE3069283
    assert tfrecord.crc32c(bytes(32)) == 0x8A9136AA
    assert tfrecord.crc32c(b"\xff" * 32) == 0x62A8AB43
    assert tfrecord.crc32c(bytes(range(32))) == 0x46DD794E


@pytest.mark.parametrize("size", [2047, 2048, 2049, 2560, 5001])
def test_lanes_equal_one_byte_at_a_time(size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    assert tfrecord.crc32c(data) == tfrecord._crc_bytes(0xFFFFFFFF, data) ^ 0xFFFFFFFF


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1), st.lists(st.binary(max_size=200), min_size=1))
def test_examples_round_trip(numbers: list[int], blobs: list[bytes]) -> None:
    floats = np.arange(5, dtype=np.float32)
    found = tfrecord.parse_example(tiny.example({"n": numbers, "b": blobs, "f": floats}))
    assert found["n"].tolist() == numbers  # type: ignore[union-attr]
    assert found["b"] == blobs
    np.testing.assert_array_equal(found["f"], floats)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=100))
def test_noise_raises_value_errors_only(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        tfrecord.parse_example(data)
