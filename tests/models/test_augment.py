"""Random changes of training images: what they keep, how far they go, and that sampling never sees them."""

from __future__ import annotations

import colorsys
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cel_jax.models import augment as module
from cel_jax.models.augment import Draw, augment
from cel_jax.models.inputs import ModelInputs
from cel_jax.models.pi0 import flow_loss, sample_actions
from cel_jax.models.presets import PRESETS, Pi0Config
from tests.models.robots import noisy_params, random_inputs, tiny

STILL = Draw(*map(jnp.asarray, ((0.5, 0.5), 0.0, True, 0.0, 0.0, 0.0)))


def test_colours_go_to_hsv_and_back_as_pythons_own() -> None:
    rows = np.concatenate(
        [np.random.default_rng(0).random((200, 3)), np.eye(3), np.full((2, 3), 0.4), np.zeros((1, 3))]
    )
    got = np.stack(module.to_hsv(jnp.asarray(rows, jnp.float32)), axis=-1)
    np.testing.assert_allclose(got, [colorsys.rgb_to_hsv(*row) for row in rows], atol=1e-5)
    turned = module.from_hsv(got[:, 0] + 0.3, got[:, 1], got[:, 2])
    want = [colorsys.hsv_to_rgb((h + 0.3) % 1, s, v) for h, s, v in got]
    np.testing.assert_allclose(turned, want, atol=1e-5)


def test_a_still_draw_keeps_colours_and_zooms_by_the_crop_alone() -> None:
    image = jnp.asarray(np.random.default_rng(1).random((40, 40, 3)), jnp.float32)
    np.testing.assert_allclose(module.recolour(image, STILL), image, atol=1e-5)
    ramp = jnp.broadcast_to(jnp.arange(40.0)[:, None, None] / 40, (40, 40, 3))
    for corner in (0.0, 0.999):
        moved = module.move(ramp, STILL._replace(corner=jnp.full(2, corner)))
        first, last = float(moved[0, 20, 0] * 40), float(moved[-1, 20, 0] * 40)
        assert last - first == pytest.approx(37, abs=1e-3)  # 38 of 40 rows, over 40 again
        assert first == pytest.approx(2 if corner else 0, abs=1e-3)


def test_a_rotation_turns_about_the_middle_and_leaves_black_corners() -> None:
    spot = np.zeros((41, 41, 3), np.float32)
    spot[20, 35] = 1.0
    turned = module.move(jnp.asarray(spot), STILL._replace(angle=jnp.float32(np.pi / 2)))
    row, column = np.unravel_index(int(turned[..., 0].argmax()), (41, 41))
    assert abs(column - 20) <= 1 and abs(abs(row - 20) - 15) <= 2
    white = module.move(jnp.ones((40, 40, 3)), STILL._replace(angle=jnp.float32(0.087)))
    assert white.min() == 0.0 and float((white > 0.999).mean()) > 0.9


def test_brightness_and_contrast_keep_greys_grey_and_stay_in_range() -> None:
    grey = jnp.broadcast_to(jnp.linspace(0, 1, 16)[:, None, None], (16, 16, 3))
    changed = module.recolour(grey, STILL._replace(brightness=jnp.float32(0.3), contrast=jnp.float32(-0.4), hue=0.1))
    assert float(jnp.ptp(changed, axis=-1).max()) < 1e-6 and float(changed.min()) >= 0 and float(changed.max()) <= 1
    assert float(changed[0, 0, 0]) == pytest.approx((0.3 - 0.5) * np.tan(0.6 * np.pi / 4) + 0.5, abs=1e-5)


def with_cameras(config: Pi0Config, batch: int) -> ModelInputs:
    """The same picture in every camera and sample."""
    picture = np.random.default_rng(3).integers(0, 256, (config.image_px, config.image_px, 3), np.uint8)
    images = {key: np.broadcast_to(picture, (batch, *picture.shape)) for key in config.image_keys}
    return dataclasses.replace(random_inputs(config, batch), images=images)


def test_wrist_cameras_keep_their_geometry_and_half_of_the_samples_their_colours() -> None:
    config = tiny("images")
    assert config.image_keys == ("head", "wrist")
    inputs = with_cameras(config, 64)
    out = jax.jit(augment, static_argnums=1)(inputs, config, jax.random.key(0))
    before = inputs.images["wrist"].astype(np.float32) / 127.5 - 1
    same = np.abs(np.asarray(out.images["wrist"]) - before).max(axis=(1, 2, 3)) < 1e-5
    assert 18 < same.sum() < 46 and np.abs(np.asarray(out.images["head"]) - before).max(axis=(1, 2, 3)).min() > 0.05
    assert out.images["head"].shape == before.shape and np.abs(np.asarray(out.images["head"])).max() <= 1.0 + 1e-6
    again = augment(inputs, config, jax.random.key(0))
    np.testing.assert_allclose(again.images["head"], out.images["head"], atol=1e-3)


@pytest.mark.slow
def test_training_sees_changed_images_and_sampling_never_does() -> None:
    plain = tiny("images")
    config, params = dataclasses.replace(plain, augment=True), noisy_params(plain)
    inputs, shape = with_cameras(plain, 4), (4, plain.action_horizon, plain.action_dim)
    args = jnp.ones(shape), jnp.ones(shape[:2], bool), jax.random.key(1)
    losses = [flow_loss(params, one, inputs, *args)[1] for one in (plain, config, config)]
    assert float(jnp.abs(losses[0] - losses[1]).min()) > 1e-6
    np.testing.assert_array_equal(losses[1], losses[2])
    sampled = [sample_actions(params, one, inputs, jnp.zeros(shape), 2) for one in (plain, config)]
    np.testing.assert_array_equal(*sampled)


def test_large_presets_augment_as_openpi_and_nano_does_not() -> None:
    assert {name: preset.augment for name, preset in PRESETS.items()} == dict.fromkeys(PRESETS, True) | {"nano": False}
