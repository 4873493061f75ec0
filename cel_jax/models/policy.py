"""A policy ready to serve: raw observations in, absolute action chunks out.

Shape letters: B observations, S state numbers, A action numbers, H horizon, O objects, P pose numbers,
h w pixels. Numbers on the host are numpy; one jitted function, shared by all policies of one configuration,
does the rest: a new version of the weights compiles nothing.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from cel_jax.config import PolicyConfig
from cel_jax.data.actions import to_absolute
from cel_jax.data.episode import Features
from cel_jax.data.normalize import NormStats, normalize, unnormalize
from cel_jax.models.inputs import ModelInputs
from cel_jax.models.packed import Packed, pack, sample_packed
from cel_jax.models.pi0 import Params
from cel_jax.models.presets import Pi0Config
from cel_jax.models.tokenizer import make_tokenizer, tokenize


@functools.partial(jax.jit, static_argnums=(1, 4))
def _sample(
    packed: Packed, config: Pi0Config, inputs: ModelInputs, seed: jax.Array, num_steps: int, noise_scale: jax.Array
) -> jax.Array:
    """Each row has noise of its own, which depends on seed and row alone, not on the padded batch."""
    rows = jnp.arange(inputs.state.shape[0], dtype=jnp.uint32)
    keys = jax.vmap(functools.partial(jax.random.fold_in, jax.random.key(seed)))(rows)
    shape = (config.action_horizon, config.action_dim)
    noise = jax.vmap(lambda key: jax.random.normal(key, shape, jnp.float32))(keys)
    return sample_packed(packed, config, inputs, noise_scale * noise, num_steps)


_pack = jax.jit(pack, static_argnums=1)


class Policy:
    """Weights, statistics and the robot's features.

    policy.warm([1, 4, 16])
    actions = policy.infer(states, images, objects, prompts, seed)  # float32 [B, H, A], absolute
    """

    def __init__(
        self,
        config: Pi0Config,
        params: Params,
        norm_stats: NormStats,
        features: Features,
        policy_config: PolicyConfig,
    ) -> None:
        _check_stats(config, norm_stats, features)
        self.config = config
        self.params = jax.device_put(params)
        self.norm_stats = norm_stats
        self.features = features
        self.policy_config = policy_config
        self._tokenizer = make_tokenizer(policy_config.tokenizer)
        self._sizes: tuple[int, ...] = ()

    def with_params(self, params: Params) -> Policy:
        """The same policy with other weights, warmed for the same sizes (nothing compiles again)."""
        return self._derived(params, self.policy_config, self._sizes)

    def without_params(self) -> Policy:
        """All but the weights: what a learner keeps of the policy that it started from."""
        return self._derived({}, self.policy_config)

    def with_sampling(self, settings: PolicyConfig) -> Policy:
        """The same policy, sampled with these settings' flow_steps and noise_scale."""
        chosen = dataclasses.replace(
            self.policy_config, flow_steps=settings.flow_steps, noise_scale=settings.noise_scale
        )
        return self._derived(self.params, chosen)

    def _derived(self, params: Params, settings: PolicyConfig, warmed: tuple[int, ...] = ()) -> Policy:
        """For the same robot, with the same tokenizer, which is read once."""
        other = copy.copy(self)
        other.__dict__.pop("packed", None)
        other.params, other.policy_config, other._sizes = jax.device_put(params), settings, warmed
        return other

    @functools.cached_property
    def packed(self) -> Packed:
        """The weights as sampling reads them: made at the first inference, so that a learner never holds both."""
        return _pack(self.params, self.config)

    @property
    def warmed(self) -> tuple[int, ...]:
        return self._sizes

    def warm(self, batch_sizes: Sequence[int], prompt: str = "") -> None:
        """Compiles for these batch sizes, so that nothing compiles while robots wait."""
        if not batch_sizes or min(batch_sizes) < 1:
            raise ValueError(f"batch sizes to warm must be positive, got {list(batch_sizes)}")
        for size in sorted(set(batch_sizes)):
            self._run(*self._example(size, prompt), seed=0, size=size)
        self._sizes = tuple(sorted(set(self._sizes) | set(batch_sizes)))

    def infer(
        self,
        states: np.ndarray,
        images: Mapping[str, np.ndarray],
        objects: np.ndarray | None,
        prompts: Sequence[str],
        seed: int,
        present: Mapping[str, np.ndarray] | None = None,
    ) -> np.ndarray:
        """Absolute action chunks, float32 [B, H, A], of B observations.

        states: f32 [B, S], raw. images: camera -> uint8 [B, h, w, 3], {} in `state` mode. objects: [B, O, P] or
        None. prompts: B texts. present: camera -> bool [B], False where a row lacks it. Batches above the largest
        warmed size run in pieces. Raises ValueError for shapes that do not fit the robot's features, or if a result
        is not finite.
        """
        states = np.asarray(states, np.float32)
        self._check(states, images, objects, prompts)
        largest = self._sizes[-1] if self._sizes else max(len(states), 1)
        pieces = [slice(i, i + largest) for i in range(0, len(states), largest)]
        there = _presence(self.config, present or {}, len(states))
        chosen = [_take(piece, states, images, objects, prompts, there) for piece in pieces]
        parts = [self._run(*batch, seed=seed + i, size=self._padded(len(batch[0]))) for i, batch in enumerate(chosen)]
        actions = np.concatenate(parts)
        if not np.isfinite(actions).all():
            raise ValueError(f"the policy gave actions that are not finite in rows {_bad_rows(actions)}")
        return actions

    def _padded(self, batch: int) -> int:
        """The smallest warmed size that holds the batch; without any, the next power of two."""
        return next((size for size in self._sizes if size >= batch), 1 << (batch - 1).bit_length())

    def _run(
        self,
        states: np.ndarray,
        images: Mapping[str, np.ndarray],
        objects: np.ndarray | None,
        prompts: Sequence[str],
        present: Mapping[str, np.ndarray] | None = None,
        *,
        seed: int,
        size: int,
    ) -> np.ndarray:
        inputs = self.make_inputs(states, images, objects, prompts)
        there = _presence(self.config, present or {}, len(states))
        inputs = dataclasses.replace(inputs, image_masks=there)
        padded = jax.tree.map(functools.partial(_pad_rows, size=size), inputs)
        settings = self.policy_config
        raw = np.asarray(
            _sample(
                self.packed, self.config, padded, np.uint32(seed % 2**32), settings.flow_steps,
                np.float32(settings.noise_scale),
            )
        )  # fmt: skip
        stats, features = self.norm_stats, self.features
        actions = unnormalize(raw[: len(states), :, : features.action_dim], stats.action_mean, stats.action_std)
        return to_absolute(actions.astype(np.float32), states, features.delta_mask)

    def make_inputs(
        self,
        states: np.ndarray,
        images: Mapping[str, np.ndarray],
        objects: np.ndarray | None,
        prompts: Sequence[str],
    ) -> ModelInputs:
        """Raw observations as the network's inputs (numpy leaves)."""
        return make_model_inputs(
            self.config, self.norm_stats, states, images, objects, tokenizer_output=self._tokens(states, prompts)
        )

    def _tokens(self, states: np.ndarray, prompts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        stats = self.norm_stats
        return tokenize(self._tokenizer, self.config, prompts, normalize(states, stats.state_mean, stats.state_std))

    def _example(
        self, batch: int, prompt: str
    ) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray | None, list[str]]:
        cameras = self.features.cameras if self.config.image_keys else ()
        images = {c.name: np.zeros((batch, c.height, c.width, 3), np.uint8) for c in cameras}
        shape = self.features.objects_shape
        objects = None if shape is None else np.zeros((batch, *shape), np.float32)
        return np.zeros((batch, self.features.state_dim), np.float32), images, objects, [prompt] * batch

    def _check(
        self,
        states: np.ndarray,
        images: Mapping[str, np.ndarray],
        objects: np.ndarray | None,
        prompts: Sequence[str],
    ) -> None:
        example = self._example(max(len(states), 1), "")
        expected = {"states": example[0].shape} | {key: x.shape for key, x in example[1].items()}
        got = {"states": states.shape} | {key: images[key].shape for key in self.config.image_keys if key in images}
        if example[2] is not None:
            expected["objects"], got["objects"] = example[2].shape, () if objects is None else objects.shape
        if expected != got or len(prompts) != len(states) or not len(states):
            counts = f"{len(prompts)} prompts"
            raise ValueError(f"observations do not fit the robot: expected {expected}, got {got} and {counts}")


def make_model_inputs(
    config: Pi0Config,
    stats: NormStats,
    states: np.ndarray,
    images: Mapping[str, np.ndarray],
    objects: np.ndarray | None,
    tokenizer_output: tuple[np.ndarray, np.ndarray],
) -> ModelInputs:
    """Normalises states [B, S] and objects [B, O, P]; keeps uint8 images (the network converts them)."""
    tokens, token_mask = tokenizer_output
    shown = None
    if config.objects_shape is not None:
        shown = normalize(objects, stats.objects_mean, stats.objects_std).astype(np.float32)
    return ModelInputs(
        images={key: images[key] for key in config.image_keys},
        image_masks={},
        objects=shown,
        tokens=tokens,
        token_mask=token_mask,
        state=normalize(states, stats.state_mean, stats.state_std).astype(np.float32),
    )


def _take(rows: slice, states, images, objects, prompts, there):  # type: ignore[no-untyped-def]
    """The same rows of every part of a batch."""
    some_objects = None if objects is None else objects[rows]
    shown, present = ({key: part[rows] for key, part in parts.items()} for parts in (images, there))
    return states[rows], shown, some_objects, prompts[rows], present


def _presence(config: Pi0Config, present: Mapping[str, np.ndarray], batch: int) -> dict[str, np.ndarray]:
    """Whether each row has each camera, bool [B]; True where nothing is said."""
    there = np.ones(batch, bool)
    return {key: np.asarray(present.get(key, there), bool) for key in config.image_keys}


def _pad_rows(x: np.ndarray, size: int) -> np.ndarray:
    """Repeats the last row up to `size` rows: padding behaves like a real observation."""
    return np.concatenate([x, np.repeat(x[-1:], size - len(x), axis=0)]) if len(x) < size else x


def _bad_rows(actions: np.ndarray) -> list[int]:
    return np.flatnonzero(~np.isfinite(actions).all(axis=(1, 2))).tolist()


def _check_stats(config: Pi0Config, stats: NormStats, features: Features) -> None:
    """Raises ValueError where statistics do not fit the robot or the horizon."""
    wrong = []
    if stats.state_mean.shape != (features.state_dim,):
        wrong.append(f"state_mean {stats.state_mean.shape}, expected {(features.state_dim,)}")
    fitting = (features.action_dim,), (config.action_horizon, features.action_dim)
    if stats.action_mean.shape not in fitting:
        wrong.append(f"action_mean {stats.action_mean.shape}, expected one of {fitting}")
    if config.objects_shape is not None:
        shape = None if stats.objects_mean is None else stats.objects_mean.shape
        if shape != config.objects_shape:
            wrong.append(f"objects_mean {shape}, expected {config.objects_shape}")
    if wrong:
        raise ValueError(f"normalisation does not fit robot {features.robot_type}: " + "; ".join(wrong))


def serving_dtype(config: Pi0Config, dtype: str | None) -> Pi0Config:
    """`dtype` for the computation; None: float32 on a CPU, where bfloat16 is slower, else the configuration's."""
    chosen = dtype or ("float32" if jax.default_backend() == "cpu" else config.dtype)
    return dataclasses.replace(config, dtype=chosen)
