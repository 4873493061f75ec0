"""pi0 and pi0.5: a vision-language prefix, an action expert, flow matching, a sampler with a key-value cache.

The parameter tree has the paths of openpi's checkpoints. `config` is static in every function here.
Shape letters: B batch, H action horizon, A action numbers, k actions per token, P prefix tokens, S suffix
tokens (state and H / k action tokens; pi0.5 has no state token), D width, n tokens of an image.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp

from cel_jax.models import flow, masks
from cel_jax.models.augment import augment
from cel_jax.models.gemma import Gemma, KeyValue
from cel_jax.models.inputs import ModelInputs, check_inputs, example_inputs, pad_last, stack_images
from cel_jax.models.presets import Pi0Config
from cel_jax.models.siglip import SigLIP

Params: TypeAlias = dict[str, Any]


class Tokens(NamedTuple):
    """x [B, T, D]; valid bool [B, T]; block_start bool [T], see masks.py."""

    x: jax.Array
    valid: jax.Array
    block_start: jax.Array


class PaliGemma(nn.Module):
    """Groups tower and language model under the checkpoint's names `img` and `llm`."""

    config: Pi0Config

    def setup(self) -> None:
        c = self.config
        if c.siglip is not None:
            self.img = SigLIP(c.siglip, c.paligemma.width, c.dtype, c.remat, c.unroll, c.attention)
        self.llm = Gemma((c.paligemma, c.action_expert), c.vocab_size, c.dtype, c.remat, c.unroll, c.attention)


class Pi0(nn.Module):
    """The network. Projections around the experts compute in float32."""

    config: Pi0Config

    def setup(self) -> None:
        c, width = self.config, self.config.action_expert.width
        self.PaliGemma = PaliGemma(c)
        self.action_in_proj = nn.Dense(width)
        self.action_out_proj = nn.Dense(c.actions_per_token * c.action_dim)
        if c.pi05:
            self.time_mlp_in, self.time_mlp_out = nn.Dense(width), nn.Dense(width)
        else:
            self.state_proj = nn.Dense(width)
            self.action_time_mlp_in, self.action_time_mlp_out = nn.Dense(width), nn.Dense(width)
        if c.objects_shape is not None:
            self.object_proj = nn.Dense(c.paligemma.width)
            init = nn.initializers.normal(stddev=c.paligemma.width**-0.5)
            self.object_embedding = self.param("object_embedding", init, (c.objects_shape[0], c.paligemma.width))

    def __call__(self, inputs: ModelInputs, x_t: jax.Array, time: jax.Array) -> jax.Array:
        """Velocity [B, H, A] at x_t [B, H, A] and time [B], prefix and suffix in one pass."""
        return self.decode(self.joint(inputs, x_t, time)[1])

    def joint(self, inputs: ModelInputs, x_t: jax.Array, time: jax.Array) -> tuple[Any, Any]:
        """Outputs of both experts after their final norms: [B, P, D0] and [B, S, D1]."""
        prefix = self.embed_prefix(inputs)
        suffix, cond = self.embed_suffix(inputs.state, x_t, time)
        valid = jnp.concatenate([prefix.valid, suffix.valid], axis=1)
        start = jnp.concatenate([prefix.block_start, suffix.block_start])
        mask, position = masks.attention_mask(valid, start), masks.positions(valid)
        out, _ = self.PaliGemma.llm((prefix.x, suffix.x), position, mask, (None, cond))
        return out[0], out[1]

    def embed_prefix(self, inputs: ModelInputs) -> Tokens:
        """Image tokens, object tokens, prompt tokens; they all see each other."""
        check_inputs(self.config, inputs)
        parts = [(self.PaliGemma.llm.embed(inputs.tokens), inputs.token_mask)]
        if self.config.objects_shape is not None:
            parts.insert(0, self._object_tokens(inputs.objects))
        if self.config.image_keys:
            parts.insert(0, self._image_tokens(inputs))
        x = jnp.concatenate([part.astype(self.config.dtype) for part, _ in parts], axis=1)
        valid = jnp.concatenate([valid for _, valid in parts], axis=1)
        return Tokens(x, valid, jnp.zeros((x.shape[1],), bool))

    def _object_tokens(self, objects: Any) -> tuple[jax.Array, jax.Array]:
        # RoPE alone tells objects apart only by their order: an embedding names them.
        x = self.object_proj(objects) + self.object_embedding
        return x, jnp.ones(x.shape[:2], bool)

    def _image_tokens(self, inputs: ModelInputs) -> tuple[jax.Array, jax.Array]:
        """All cameras through the tower at once; then camera after camera along the token axis."""
        images, present = stack_images(self.config, inputs)
        cameras, batch = present.shape
        tokens = self.image_tokens(images.reshape(cameras * batch, *images.shape[2:]))
        tokens = tokens.reshape(cameras, batch, *tokens.shape[1:]).swapaxes(0, 1)
        valid = jnp.broadcast_to(present.T[:, :, None], tokens.shape[:3])
        return tokens.reshape(batch, -1, tokens.shape[-1]), valid.reshape(batch, -1)

    def image_tokens(self, images: jax.Array, head: bool = True) -> jax.Array:
        """f32 [B, px, px, 3] in -1..1 -> [B, n, D]; before the head D is the tower's width."""
        return self.PaliGemma.img(images, head)

    def embed_suffix(self, state: jax.Array, x_t: jax.Array, time: jax.Array) -> tuple[Tokens, jax.Array | None]:
        """Tokens [B, S, D] of the action expert and pi0.5's adaRMS condition [B, D] (None in pi0)."""
        c = self.config
        actions = self.action_in_proj(x_t.reshape(x_t.shape[0], c.num_action_tokens, -1))
        embedding = flow.embed_time(time, c.action_expert.width)
        if c.pi05:
            cond = nn.swish(self.time_mlp_out(nn.swish(self.time_mlp_in(embedding))))
            return _suffix(actions, state_tokens=0), cond
        both = jnp.concatenate([actions, jnp.broadcast_to(embedding[:, None], actions.shape)], axis=-1)
        actions = self.action_time_mlp_out(nn.swish(self.action_time_mlp_in(both)))
        state = self.state_proj(pad_last(state, c.state_width, "state"))
        return _suffix(jnp.concatenate([state[:, None], actions], axis=1), state_tokens=1), None

    def decode(self, suffix_out: Any) -> jax.Array:
        """[B, S, D] -> velocity f32 [B, H, A]."""
        c = self.config
        out = self.action_out_proj(suffix_out[:, -c.num_action_tokens :])
        return out.reshape(out.shape[0], c.action_horizon, c.action_dim).astype(jnp.float32)

    def encode_prefix(self, inputs: ModelInputs) -> tuple[KeyValue | None, jax.Array]:
        """Keys and values of all layers, each [layers, B, P, heads, head_dim], and validity bool [B, P]."""
        prefix = self.embed_prefix(inputs)
        mask = masks.attention_mask(prefix.valid, prefix.block_start)
        position = masks.positions(prefix.valid)
        _, cache = self.PaliGemma.llm((prefix.x, None), position, mask, (None, None), keep_cache=True)
        return cache, prefix.valid

    def cached_velocity(
        self, cache: KeyValue, prefix_valid: jax.Array, state: jax.Array, x_t: jax.Array, time: jax.Array
    ) -> jax.Array:
        """The same velocity, with the prefix from `encode_prefix`."""
        suffix, cond = self.embed_suffix(state, x_t, time)
        mask = masks.cached_mask(prefix_valid, suffix.valid, suffix.block_start)
        position = masks.cached_positions(prefix_valid, suffix.valid)
        out, _ = self.PaliGemma.llm((None, suffix.x), position, mask, (None, cond), cache)
        return self.decode(out[1])


def _suffix(x: jax.Array, state_tokens: int) -> Tokens:
    """A state token is a block of its own; the action tokens are one block."""
    index = jnp.arange(x.shape[1])
    return Tokens(x, jnp.ones(x.shape[:2], bool), index <= state_tokens)


def init_params(config: Pi0Config, rng: jax.Array) -> Params:
    """Fresh float32 parameters. May be called under `jit`, for instance with output shardings."""
    return _init(config, rng) if isinstance(rng, jax.core.Tracer) else _compiled_init(config, rng)


def _init(config: Pi0Config, rng: jax.Array) -> Params:
    x_t = jnp.zeros((1, config.action_horizon, config.action_dim), jnp.float32)
    return Pi0(config).init(rng, example_inputs(config, 1), x_t, jnp.ones((1,), jnp.float32))["params"]


# Runs once, and most of it is random bits: optimising it takes four times longer than it saves.
_compiled_init = jax.jit(_init, static_argnums=0, compiler_options={"xla_backend_optimization_level": 0})


def param_shapes(config: Pi0Config) -> Params:
    """The tree of `init_params` as `jax.ShapeDtypeStruct`s, without allocating it."""
    return jax.eval_shape(functools.partial(_init, config), jax.random.key(0))


def _apply(params: Params, config: Pi0Config, *args: Any, method: str = "__call__") -> Any:
    return Pi0(config).apply({"params": params}, *args, method=method)


def velocity(params: Params, config: Pi0Config, inputs: ModelInputs, x_t: jax.Array, time: jax.Array) -> jax.Array:
    """f32 [B, H, A] at x_t [B, H, A] and time [B]."""
    return _apply(params, config, inputs, x_t, time)


def flow_loss(
    params: Params,
    config: Pi0Config,
    inputs: ModelInputs,
    actions: jax.Array,
    action_mask: jax.Array,
    rng: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Scalar loss and loss per sample [B] (equation 43). Pure; jit it with `config` static.

    actions: f32 [B, H, A], normalised, A at most the network's (zeros are added, as openpi does).
    action_mask: bool [B, H], False past the episode's end: such steps carry no loss. With `config.augment` the images
    are changed at random, as openpi does in training.
    """
    actions = pad_last(actions, config.action_dim, "actions")
    noise_rng, time_rng = jax.random.split(rng)
    if config.augment and config.image_keys:
        inputs = augment(inputs, config, jax.random.fold_in(rng, 2))
    noise = jax.random.normal(noise_rng, actions.shape, jnp.float32)
    time = flow.sample_time(time_rng, actions.shape[0])
    return flow_loss_at(params, config, inputs, actions, action_mask, noise, time)


def flow_loss_at(
    params: Params,
    config: Pi0Config,
    inputs: ModelInputs,
    actions: jax.Array,
    action_mask: jax.Array,
    noise: jax.Array,
    time: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """`flow_loss` at given noise [B, H, A] and time [B]."""
    predicted = velocity(params, config, inputs, flow.interpolate(actions, noise, time), time)
    per_step = flow.loss_per_step(predicted, flow.target_velocity(actions, noise))
    return flow.masked_loss(per_step, action_mask)


def sample_actions(
    params: Params, config: Pi0Config, inputs: ModelInputs, noise: jax.Array, num_steps: int
) -> jax.Array:
    """Normalised actions f32 [B, H, A] by Euler steps from noise [B, H, A] at time 1 to time 0.

    The prefix runs once. Pure; jit it with `config` and `num_steps` static.
    """
    if num_steps < 1:
        raise ValueError(f"num_steps must be at least 1, got {num_steps}")
    cache, valid = _apply(params, config, inputs, method="encode_prefix")
    dt = -1.0 / num_steps

    def step(carry: tuple[jax.Array, jax.Array], _: None) -> tuple[tuple[jax.Array, jax.Array], None]:
        x_t, time = carry
        times = jnp.full((x_t.shape[0],), time)
        v = _apply(params, config, cache, valid, inputs.state, x_t, times, method="cached_velocity")
        return (x_t + dt * v, time + dt), None

    (actions, _), _ = jax.lax.scan(step, (noise.astype(jnp.float32), jnp.float32(1.0)), None, length=num_steps)
    return actions


def vision_tokens(params: Params, config: Pi0Config, images: jax.Array) -> jax.Array:
    """f32 [B, px, px, 3] in -1..1 -> [B, n, tower width]: the tower's tokens before the head, for retrieval."""
    return _apply(params, config, images, False, method="image_tokens")
