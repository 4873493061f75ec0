"""Arrays and messages survive the wire; anything else is refused by name."""

from __future__ import annotations

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cel_jax.bus.arrays import DTYPES, pack_arrays, unpack_arrays
from cel_jax.bus.errors import WireError
from cel_jax.bus.identity import Identity
from cel_jax.bus.message import Limits, Reply, Request, decode_reply, decode_request, encode_reply, encode_request

ME = Identity("robot-0", "w-1", "environment")
ARRAYS = hnp.arrays(st.sampled_from(sorted(DTYPES)), hnp.array_shapes(min_dims=0, min_side=0, max_side=4))
LEAVES = ARRAYS | st.binary(max_size=20) | st.lists(st.binary(max_size=9), max_size=4)
TREES = st.recursive(LEAVES, lambda inner: st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=8)


def _same(left, right) -> bool:
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_same(left[name], right[name]) for name in left)
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    return left == right


@settings(deadline=None, max_examples=40)
@given(st.dictionaries(st.text(max_size=5), TREES, max_size=4))
def test_arrays_round_trip(tree):
    meta, buffers = pack_arrays(tree)
    packed = msgpack.unpackb(msgpack.packb(meta))
    assert _same(tree, unpack_arrays(packed, [bytes(buffer) for buffer in buffers]))


def test_strided_and_big_endian_arrays_round_trip():
    tree = {"a": np.arange(24, dtype=">i4").reshape(4, 6)[::2, ::-1], "b": np.arange(6.0).reshape(2, 3).T}
    back = unpack_arrays(*pack_arrays(tree))
    assert np.array_equal(back["a"], tree["a"]) and np.array_equal(back["b"], tree["b"])
    assert not back["a"].flags.writeable


@pytest.mark.parametrize("value", [np.array([object()]), np.array(["a"]), np.zeros(2, complex), 3, "text", [1]])
def test_other_leaves_are_refused(value):
    with pytest.raises(WireError, match="/x/y"):
        pack_arrays({"x": {"y": value}})


@pytest.mark.parametrize(
    "meta",
    [
        {"a": {"d": "|O", "s": [1]}},
        {"a": {"d": "<f4", "s": [3]}},
        {"a": {"d": "<f4", "s": [-1]}},
        {"a": {"d": "<f4", "s": [True]}},
        {"a": {"d": "<f4"}},
        {"a": {"l": [4, 5]}},
        {"a": {"b": 7}},
        {"a": 5},
        [],
        None,
        {},
        {"a": {"b": 8}, "b": {"b": 8}},
    ],
)
def test_metadata_that_does_not_fit_is_refused(meta):
    with pytest.raises(WireError):
        unpack_arrays(meta, [b"12345678"])


def test_request_and_reply_round_trip():
    request = Request("infer", 7, ME, "home", 3, 1.5, {"step": 4, "x": [1, None]}, (b"abc",))
    assert decode_request(encode_request(request), Limits()) == request
    reply = Reply({"ok": True}, (b"z",), ME, 7, 3, is_error=True)
    assert decode_reply(encode_reply(reply), Limits()) == reply


@settings(deadline=None, max_examples=200)
@given(st.lists(st.binary(max_size=60), max_size=3))
def test_noise_is_a_wire_error(frames):
    with pytest.raises(WireError):
        decode_request(frames, Limits())


@pytest.mark.parametrize("name", ["v", "k", "op", "call", "from", "to", "epoch", "deadline_s", "body"])
@pytest.mark.parametrize("wrong", [None, [], [1, 2, 3], b"x", True])
def test_a_wrong_field_is_a_wire_error(name, wrong):
    head = msgpack.unpackb(encode_request(Request("o", 1, ME, "home", 0, 1.0, {}))[0])
    with pytest.raises(WireError):
        decode_request([msgpack.packb({**head, name: wrong})], Limits())


def test_sizes_are_bounded():
    frames = encode_request(Request("o", 1, ME, "home", 0, 1.0, {}, (b"x" * 50, b"y" * 50)))
    for limits, words in [
        (Limits(header_bytes=10), "header of at most 10"),
        (Limits(buffers=1), "at most 1 buffers"),
        (Limits(total_bytes=150), "at most 150 bytes"),
    ]:
        with pytest.raises(WireError, match=words):
            decode_request(frames, limits)


def test_other_version_names_both():
    head = msgpack.unpackb(encode_request(Request("o", 1, ME, "home", 0, 1.0, {}))[0])
    with pytest.raises(WireError, match=r"version 1, got 2"):
        decode_request([msgpack.packb({**head, "v": 2})], Limits())


def test_header_that_msgpack_cannot_carry():
    with pytest.raises(WireError, match="infer"):
        encode_request(Request("infer", 1, ME, "home", 0, 1.0, {"x": object()}))
