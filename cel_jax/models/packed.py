"""The same network, laid out for sampling: layers apart, projections joined, what repeats computed once.

A scan over stacked layers copies every layer's weights before each product, and a denoising step is mostly reading
weights: here each layer is a buffer of its own. q, k, v are one product, gate and up another; LoRA is merged; the last
prefix layer stops at its keys and values, which are all that the suffix reads; what depends on the flow time alone
(the time half of the action projection, pi0.5's modulations) is computed once for all steps.
Shape letters: B batch, T tokens, S keys, D width, N heads, K key-value heads, G heads per K, H head_dim, F mlp_dim,
E flow steps, P prefix tokens, A action numbers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from cel_jax.models import flow, masks
from cel_jax.models.attention import attend_grouped, rope_angles, rotate_by, rounded_up
from cel_jax.models.inputs import ModelInputs, check_inputs, pad_last, stack_images
from cel_jax.models.packed_vision import VisionLayer, pack_vision, see
from cel_jax.models.presets import GemmaConfig, Pi0Config

Params = dict[str, Any]
Cache = tuple[tuple[jax.Array, jax.Array], ...]  # of every layer: keys and values [B, S, K, H]


class ExpertLayer(NamedTuple):
    """qkv [D, (N + 2K) H]; out [N H, D]; gate_up [D, 2F]; down [F, D]. Norms: {"scale"} or adaRMS {"Dense_0"}."""

    attention_norm: Params
    qkv: jax.Array
    out: jax.Array
    feed_norm: Params
    gate_up: jax.Array
    down: jax.Array


class Packed(NamedTuple):
    """rest: the leaves outside the layers, under the checkpoint's names."""

    rest: Params
    vision: tuple[VisionLayer, ...]
    prefix: tuple[ExpertLayer, ...]
    suffix: tuple[ExpertLayer, ...]


def pack(params: Params, config: Pi0Config) -> Packed:
    """Weights for sampling, in the dtype of `params`. Pure; jit it with `config` static."""
    tower = params["PaliGemma"]
    layers = tower["llm"]["layers"]
    rest = {name: leaf for name, leaf in params.items() if name != "PaliGemma"}
    rest["llm"] = {name: leaf for name, leaf in tower["llm"].items() if name != "layers"}
    if "img" in tower:
        rest["img"] = tower["img"] | {"Transformer": {"encoder_norm": tower["img"]["Transformer"]["encoder_norm"]}}
    return Packed(
        rest=rest,
        vision=pack_vision(tower["img"], config.siglip) if config.siglip else (),
        prefix=_pack_expert(layers, config.paligemma, ""),
        suffix=_pack_expert(layers, config.action_expert, "_1"),
    )


def _pack_expert(layers: Params, config: GemmaConfig, tail: str) -> tuple[ExpertLayer, ...]:
    return tuple(
        _pack_layer(jax.tree.map(lambda leaf, i=i: leaf[i], layers), config, tail) for i in range(config.depth)
    )


def _pack_layer(layer: Params, config: GemmaConfig, tail: str) -> ExpertLayer:
    attention, feed = layer["attn"], layer[f"mlp{tail}"]
    out = _merged_out(attention[f"attn_vec_einsum{tail}"], config)
    return ExpertLayer(
        attention_norm=layer[f"pre_attention_norm{tail}"],
        qkv=_joined_qkv(attention, config, tail),
        out=out.reshape(-1, config.width),
        feed_norm=layer[f"pre_ffw_norm{tail}"],
        gate_up=jnp.concatenate(list(_with_lora(feed, "gating_einsum")), axis=-1),
        down=_with_lora(feed, "linear"),
    )


def _joined_qkv(attention: Params, config: GemmaConfig, tail: str) -> jax.Array:
    """[D, (N + 2K) H], heads in order."""
    if config.num_kv_heads == config.num_heads:
        fused = _merged(attention[f"qkv_einsum{tail}"], config)  # [3, N, D, H]
        parts = list(fused)
    else:
        both = _merged(attention[f"kv_einsum{tail}"], config)  # [2, K, D, H]
        parts = [_merged(attention[f"q_einsum{tail}"], config), *both]
    return jnp.concatenate([jnp.swapaxes(part, 0, 1).reshape(config.width, -1) for part in parts], axis=1)


def _merged(einsum: Params, config: GemmaConfig) -> jax.Array:
    if "lora_a" not in einsum:
        return einsum["w"]
    update = jnp.matmul(_wide(einsum["lora_a"]), _wide(einsum["lora_b"])) * config.lora_scale
    return (_wide(einsum["w"]) + update).astype(einsum["w"].dtype)


def _merged_out(einsum: Params, config: GemmaConfig) -> jax.Array:
    """[N, H, D]. openpi sums the low-rank inputs over the heads before its second factor, itself summed over them."""
    if "lora_a" not in einsum:
        return einsum["w"]
    update = jnp.einsum("NHL,LD->NHD", _wide(einsum["lora_a"]), _wide(einsum["lora_b"]).sum(0)) * config.lora_scale
    return (_wide(einsum["w"]) + update).astype(einsum["w"].dtype)


def _with_lora(feed: Params, name: str) -> jax.Array:
    if f"{name}_lora_a" not in feed:
        return feed[name]
    update = jnp.matmul(_wide(feed[f"{name}_lora_a"]), _wide(feed[f"{name}_lora_b"]))
    return (_wide(feed[name]) + update).astype(feed[name].dtype)


def _wide(x: jax.Array) -> jax.Array:
    return x.astype(jnp.float32)


def sample_packed(
    packed: Packed, config: Pi0Config, inputs: ModelInputs, noise: jax.Array, num_steps: int
) -> jax.Array:
    """`pi0.sample_actions` on packed weights: normalised actions f32 [B, H, A]. jit with config, num_steps static."""
    if num_steps < 1:
        raise ValueError(f"num_steps must be at least 1, got {num_steps}")
    cache, valid = encode_prefix(packed, config, inputs)
    return denoise(packed, config, cache, valid, inputs.state, noise, num_steps)


def encode_prefix(packed: Packed, config: Pi0Config, inputs: ModelInputs) -> tuple[Cache, jax.Array]:
    """Keys and values of all layers with room for the suffix, [B, S, K, H], and validity bool [B, P]."""
    x, valid = embed_prefix(packed, config, inputs)
    mask = masks.attention_mask(valid, jnp.zeros((valid.shape[1],), bool))
    angles = rope_angles(masks.positions(valid), config.paligemma.head_dim)
    room = _suffix_room(config, valid.shape[1])
    cache = []
    for i, layer in enumerate(packed.prefix):
        q, k, v = _project(layer, config.paligemma, _norm(layer.attention_norm, x, None)[0], angles)
        cache.append((jnp.pad(k, room), jnp.pad(v, room)))
        if i + 1 < len(packed.prefix):
            x = x + _rows(attend_grouped(q, k, v, mask, config.attention)) @ layer.out.astype(x.dtype)
            x = x + _feed(layer, _norm(layer.feed_norm, x, None)[0])
    return tuple(cache), valid


def embed_prefix(packed: Packed, config: Pi0Config, inputs: ModelInputs) -> tuple[jax.Array, jax.Array]:
    """Image, object and prompt tokens [B, P, D] and their validity bool [B, P]."""
    check_inputs(config, inputs)
    parts: list[tuple[jax.Array, jax.Array]] = []
    if config.image_keys:
        parts.append(_image_tokens(packed, config, inputs))
    if config.objects_shape is not None:
        objects = _dense(packed.rest["object_proj"], inputs.objects) + packed.rest["object_embedding"]
        parts.append((objects, jnp.ones(objects.shape[:2], bool)))
    table = packed.rest["llm"]["embedder"]["input_embedding"]
    scale = jnp.sqrt(jnp.float32(config.paligemma.width)).astype(table.dtype)
    parts.append((table[inputs.tokens] * scale, inputs.token_mask))
    return (
        jnp.concatenate([x.astype(config.dtype) for x, _ in parts], axis=1),
        jnp.concatenate([valid for _, valid in parts], axis=1),
    )


def _image_tokens(packed: Packed, config: Pi0Config, inputs: ModelInputs) -> tuple[jax.Array, jax.Array]:
    images, present = stack_images(config, inputs)
    cameras, batch = present.shape
    assert config.siglip is not None
    flat = images.reshape(cameras * batch, *images.shape[2:])
    tokens = see(packed.rest["img"], packed.vision, config.siglip, flat, config.dtype, config.attention)
    tokens = tokens.reshape(cameras, batch, *tokens.shape[1:]).swapaxes(0, 1)
    valid = jnp.broadcast_to(present.T[:, :, None], tokens.shape[:3])
    return tokens.reshape(batch, -1, tokens.shape[-1]), valid.reshape(batch, -1)


def denoise(
    packed: Packed,
    config: Pi0Config,
    cache: Cache,
    prefix_valid: jax.Array,
    state: jax.Array,
    noise: jax.Array,
    num_steps: int,
) -> jax.Array:
    """Euler steps from noise [B, H, A] at time 1 to actions at time 0. The cache is extended in place, step by step."""
    dt = -1.0 / num_steps
    times = jnp.cumsum(jnp.concatenate([jnp.ones(1), jnp.full(num_steps - 1, dt)]), dtype=jnp.float32)
    constant = _time_constants(packed, config, times)
    states = None if config.pi05 else _dense(packed.rest["state_proj"], pad_last(state, config.state_width, "state"))
    mask, angles = _suffix_view(config, prefix_valid)

    def step(carry: tuple[jax.Array, Cache], time: Any) -> tuple[tuple[jax.Array, Cache], None]:
        x_t, cache = carry
        tokens, mods = _embed_suffix(packed, config, states, x_t, time)
        out, cache = _decode_layers(packed, config, cache, tokens, mods, mask, angles)
        v = _dense(packed.rest["action_out_proj"], out[:, -config.num_action_tokens :])
        return (x_t + dt * v.reshape(x_t.shape).astype(jnp.float32), cache), None

    (actions, _), _ = jax.lax.scan(step, (noise.astype(jnp.float32), cache), constant)
    return actions


def _time_constants(packed: Packed, config: Pi0Config, times: jax.Array) -> Any:
    """What a step needs of its time: pi0 the time's share of the action projection [E, D], pi0.5 all modulations."""
    rest, width = packed.rest, config.action_expert.width
    embedding = flow.embed_time(times, width)
    if not config.pi05:
        kernel = _wide(rest["action_time_mlp_in"]["kernel"])
        return embedding @ kernel[width:] + _wide(rest["action_time_mlp_in"]["bias"])
    cond = nn.swish(_dense(rest["time_mlp_out"], nn.swish(_dense(rest["time_mlp_in"], embedding))))
    norms = [norm for layer in packed.suffix for norm in (layer.attention_norm, layer.feed_norm)]
    norms.append(rest["llm"]["final_norm_1"])
    cond = cond.astype(config.dtype)
    return [_modulation(norm, cond) for norm in norms]


def _modulation(norm: Params, cond: jax.Array) -> jax.Array:
    """adaRMS scale, shift and gate [E, 3D] of every step."""
    dense = norm["Dense_0"]
    return cond @ dense["kernel"].astype(cond.dtype) + dense["bias"].astype(cond.dtype)


def _embed_suffix(
    packed: Packed, config: Pi0Config, states: jax.Array | None, x_t: jax.Array, time: Any
) -> tuple[jax.Array, list[Any]]:
    """Tokens [B, T, D] and a modulation (None in pi0) for each norm."""
    actions = _dense(packed.rest["action_in_proj"], x_t.reshape(x_t.shape[0], config.num_action_tokens, -1))
    if states is None:
        return actions.astype(config.dtype), list(time)
    kernel = _wide(packed.rest["action_time_mlp_in"]["kernel"])[: config.action_expert.width]
    actions = _dense(packed.rest["action_time_mlp_out"], nn.swish(actions @ kernel + time))
    tokens = jnp.concatenate([states[:, None], actions], axis=1).astype(config.dtype)
    return tokens, [None] * (2 * len(packed.suffix) + 1)


def _decode_layers(
    packed: Packed, config: Pi0Config, cache: Cache, x: jax.Array, mods: list[Any], mask: jax.Array, angles: Any
) -> tuple[jax.Array, Cache]:
    """The action expert over cache and own tokens -> normalised outputs [B, T, D] and the cache with the new keys."""
    new = []
    start = config.prefix_len
    for i, (layer, (keys, values)) in enumerate(zip(packed.suffix, cache, strict=True)):
        y, gate = _norm(layer.attention_norm, x, mods[2 * i])
        q, k, v = _project(layer, config.action_expert, y, angles)
        keys = jax.lax.dynamic_update_slice_in_dim(keys, k, start, axis=1)
        values = jax.lax.dynamic_update_slice_in_dim(values, v, start, axis=1)
        new.append((keys, values))
        x = _add(x, _rows(attend_grouped(q, keys, values, mask, "xla")) @ layer.out.astype(x.dtype), gate)
        y, gate = _norm(layer.feed_norm, x, mods[2 * i + 1])
        x = _add(x, _feed(layer, y), gate)
    return _norm(packed.rest["llm"]["final_norm_1"], x, mods[-1])[0], tuple(new)


def _suffix_room(config: Pi0Config, prefix: int) -> list[tuple[int, int]]:
    """Padding of [B, P, K, H] up to prefix and suffix, a multiple of 16: odd lengths are slow products."""
    tokens = config.num_action_tokens + (0 if config.pi05 else 1)
    return [(0, 0), (0, rounded_up(prefix + tokens, 16) - prefix), (0, 0), (0, 0)]


def _suffix_view(config: Pi0Config, prefix_valid: jax.Array) -> tuple[jax.Array, Any]:
    """Mask bool [B, T, S] over the padded cache, and the suffix's rotary angles."""
    states = 0 if config.pi05 else 1
    tokens = config.num_action_tokens + states
    batch, prefix = prefix_valid.shape
    valid, start = jnp.ones((batch, tokens), bool), jnp.arange(tokens) <= states
    mask = masks.cached_mask(prefix_valid, valid, start)
    padding = rounded_up(prefix + tokens, 16) - prefix - tokens
    position = masks.cached_positions(prefix_valid, valid)
    return jnp.pad(mask, [(0, 0), (0, 0), (0, padding)]), rope_angles(position, config.action_expert.head_dim)


def _project(layer: ExpertLayer, config: GemmaConfig, x: jax.Array, angles: Any) -> tuple[jax.Array, ...]:
    """q [B, T, K, G, H] scaled, k and v [B, T, K, H]; q and k rotated."""
    n, k, h = config.num_heads, config.num_kv_heads, config.head_dim
    joined = (x @ layer.qkv.astype(x.dtype)).reshape(*x.shape[:2], n + 2 * k, h)
    q = rotate_by(joined[:, :, :n], angles) * h**-0.5
    keys, values = rotate_by(joined[:, :, n : n + k], angles), joined[:, :, n + k :]
    return q.reshape(*x.shape[:2], k, n // k, h), keys, values


def _rows(x: jax.Array) -> jax.Array:
    """[B, T, K, G, H] -> [B, T, N H]."""
    return x.reshape(*x.shape[:2], -1)


def _feed(layer: ExpertLayer, x: jax.Array) -> jax.Array:
    gate, up = jnp.split(x @ layer.gate_up.astype(x.dtype), 2, axis=-1)
    return (nn.gelu(gate) * up) @ layer.down.astype(x.dtype)


def _norm(norm: Params, x: jax.Array, mod: jax.Array | None) -> tuple[jax.Array, jax.Array | None]:
    """RMS norm, or adaRMS with modulation [3D] -> (normalised, gate or None). Statistics in float32."""
    wide = _wide(x)
    normed = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + 1e-6)
    if mod is None:
        return (normed * (1 + norm["scale"])).astype(x.dtype), None
    scale, shift, gate = jnp.split(mod, 3)
    return (normed * (1 + scale) + shift).astype(x.dtype), gate


def _add(x: jax.Array, y: jax.Array, gate: jax.Array | None) -> jax.Array:
    return x + (y if gate is None else y * gate)


def _dense(dense: Params, x: Any) -> jax.Array:
    """In the wider dtype of weights and input, as flax does."""
    kernel, bias = dense["kernel"], dense["bias"]
    dtype = jnp.result_type(x.dtype, kernel.dtype)
    return x.astype(dtype) @ kernel.astype(dtype) + bias.astype(dtype)
