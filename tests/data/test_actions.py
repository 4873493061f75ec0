import numpy as np
import pytest

from cel_jax.data.actions import to_absolute, to_delta


@pytest.mark.parametrize("state_dim", [6, 8, 9])
def test_round_trip_masks_only_named_dims_and_leaves_inputs(state_dim: int) -> None:
    rng = np.random.default_rng(0)
    actions = rng.normal(size=(4, 5, 7)).astype(np.float32)
    state = rng.normal(size=(4, state_dim)).astype(np.float32)
    kept, mask = actions.copy(), (True,) * 6 + (False,)
    delta = to_delta(actions, state, mask)
    np.testing.assert_array_equal(actions, kept)
    np.testing.assert_array_equal(delta[..., 6], actions[..., 6])
    np.testing.assert_allclose(delta[:, 3, :6], actions[:, 3, :6] - state[:, :6], rtol=1e-6)
    np.testing.assert_allclose(to_absolute(delta, state, mask), actions, atol=1e-6)
    assert delta.dtype == np.float32


def test_short_mask_leaves_the_rest_absolute() -> None:
    delta = to_delta(np.ones((2, 4), np.float32), np.full(4, 3, np.float32), (False, True))
    np.testing.assert_array_equal(delta, [[1, -2, 1, 1]] * 2)


def test_a_nan_in_an_unmasked_state_dim_stays_out() -> None:
    state = np.array([1, np.nan], np.float32)
    np.testing.assert_array_equal(to_delta(np.ones((1, 2), np.float32), state, (True, False)), [[0, 1]])


@pytest.mark.parametrize("mask", [(True,) * 8, (False,) * 5 + (True,)])
def test_a_mask_that_does_not_fit_is_an_error(mask: tuple[bool, ...]) -> None:
    with pytest.raises(ValueError, match="delta mask of"):
        to_delta(np.zeros((2, 7), np.float32), np.zeros(5, np.float32), mask)
