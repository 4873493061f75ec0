"""Sizes of the policy: pi0 and pi0.5 as released, `small`, and `nano` that trains on two CPU cores.

All are frozen and hashable, so a configuration may be a static argument of a jitted function.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from cel_jax.config import PolicyConfig
from cel_jax.data.episode import Features
from cel_jax.models.attention import IMPLEMENTATIONS
from cel_jax.models.remat import POLICIES

PALIGEMMA_VOCAB = 257_152
BYTE_VOCAB = 260  # 256 bytes and four special ids, see tokenizer.py


@dataclasses.dataclass(frozen=True)
class GemmaConfig:
    """One expert of the language model. Experts share depth, heads and head_dim; width and mlp_dim may differ.

    lora_rank: 0 for none. lora_scale: alpha / rank, on the attention's weights (openpi's feed-forward has none).
    """

    width: int
    depth: int
    mlp_dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    lora_rank: int = 0
    lora_scale: float = 1.0


@dataclasses.dataclass(frozen=True)
class SigLIPConfig:
    """The image tower. `patch` is in pixels."""

    width: int
    depth: int
    mlp_dim: int
    num_heads: int
    patch: int


@dataclasses.dataclass(frozen=True)
class Pi0Config:
    """A whole policy network.

    image_keys: cameras in prefix order (openpi: base, left wrist, right wrist). image_px: side of the square
    images. objects_shape: (O, P) where object poses take the images' place. actions_per_token: consecutive
    actions in one suffix token; 1 is openpi. state_dim: 0 means action_dim. dtype: of the computation.
    remat: what the backward pass computes again, see remat.py. unroll: layers per step of the layer scan.
    attention: `xla`, or `cudnn` for flash attention on a GPU. augment: change images at random in training.
    """

    action_dim: int
    action_horizon: int
    actions_per_token: int
    max_token_len: int
    image_keys: tuple[str, ...]
    image_px: int
    objects_shape: tuple[int, int] | None
    paligemma: GemmaConfig
    action_expert: GemmaConfig
    siglip: SigLIPConfig | None
    vocab_size: int
    pi05: bool = False
    dtype: str = "float32"
    state_dim: int = 0
    discrete_state_input: bool = False
    remat: str = "all"
    unroll: int = 1
    attention: str = "xla"
    augment: bool = False

    def __post_init__(self) -> None:
        _check(self)

    @property
    def lora(self) -> bool:
        return bool(self.paligemma.lora_rank or self.action_expert.lora_rank)

    @property
    def state_width(self) -> int:
        return self.state_dim or self.action_dim

    @property
    def num_action_tokens(self) -> int:
        return self.action_horizon // self.actions_per_token

    @property
    def tokens_per_image(self) -> int:
        return (self.image_px // self.siglip.patch) ** 2 if self.siglip else 0

    @property
    def prefix_len(self) -> int:
        """Tokens before the state: images, object poses, prompt."""
        objects = self.objects_shape[0] if self.objects_shape else 0
        return len(self.image_keys) * self.tokens_per_image + objects + self.max_token_len


def _check(c: Pi0Config) -> None:
    if c.action_horizon % c.actions_per_token:
        raise ValueError(
            f"action_horizon {c.action_horizon} is not a multiple of actions_per_token {c.actions_per_token}"
        )
    for name in ("depth", "num_heads", "num_kv_heads", "head_dim"):
        ours, theirs = getattr(c.paligemma, name), getattr(c.action_expert, name)
        if ours != theirs:
            raise ValueError(f"both experts need the same {name}: paligemma has {ours}, action_expert {theirs}")
    if c.paligemma.num_heads % c.paligemma.num_kv_heads:
        raise ValueError(f"num_heads {c.paligemma.num_heads} is not a multiple of {c.paligemma.num_kv_heads} kv heads")
    for field, known in (("remat", POLICIES), ("attention", IMPLEMENTATIONS)):
        if getattr(c, field) not in known:
            raise ValueError(f"{field} {getattr(c, field)!r}: expected one of {sorted(known)}")
    if bool(c.image_keys) != (c.siglip is not None):
        raise ValueError(f"image_keys {c.image_keys} and siglip {c.siglip}: give both, or neither")
    if c.siglip and c.image_px % c.siglip.patch:
        raise ValueError(f"image_px {c.image_px} is not a multiple of the patch of {c.siglip.patch} px")


@dataclasses.dataclass(frozen=True)
class Preset:
    """What a named size fixes; the robot and `PolicyConfig` give the rest.

    pad_dim: states and actions are zero-padded to it (0: the robot's own sizes).
    """

    paligemma: GemmaConfig
    action_expert: GemmaConfig
    siglip: SigLIPConfig
    image_px: int
    min_token_len: int
    vocab_size: int
    pad_dim: int = 0
    pi05: bool = False
    dtype: str = "bfloat16"
    remat: str = "all"
    unroll: int = 1
    augment: bool = True


_GEMMA_2B = GemmaConfig(width=2048, depth=18, mlp_dim=16_384, num_heads=8, num_kv_heads=1, head_dim=256)
_GEMMA_300M = GemmaConfig(width=1024, depth=18, mlp_dim=4096, num_heads=8, num_kv_heads=1, head_dim=256)
_SO400M = SigLIPConfig(width=1152, depth=27, mlp_dim=4304, num_heads=16, patch=14)

PI0 = Preset(_GEMMA_2B, _GEMMA_300M, _SO400M, image_px=224, min_token_len=48, vocab_size=PALIGEMMA_VOCAB, pad_dim=32)
PI05 = dataclasses.replace(PI0, min_token_len=200, pi05=True)
SMALL = Preset(
    paligemma=GemmaConfig(width=640, depth=10, mlp_dim=2560, num_heads=8, num_kv_heads=1, head_dim=64),
    action_expert=GemmaConfig(width=384, depth=10, mlp_dim=1536, num_heads=8, num_kv_heads=1, head_dim=64),
    siglip=SigLIPConfig(width=512, depth=8, mlp_dim=2048, num_heads=8, patch=16),
    image_px=224,
    min_token_len=16,
    vocab_size=BYTE_VOCAB,
)
NANO = Preset(
    paligemma=GemmaConfig(width=96, depth=3, mlp_dim=256, num_heads=4, num_kv_heads=1, head_dim=24),
    action_expert=GemmaConfig(width=128, depth=3, mlp_dim=384, num_heads=4, num_kv_heads=1, head_dim=24),
    siglip=SigLIPConfig(width=96, depth=3, mlp_dim=256, num_heads=4, patch=32),
    image_px=96,
    min_token_len=1,
    vocab_size=BYTE_VOCAB,
    dtype="float32",
    remat="off",
    unroll=3,
    augment=False,
)
# Ranks of openpi's low-memory fine-tuning: 16 in PaliGemma, 32 in the action expert, alpha equal to the rank.
_LORA = {
    "paligemma": dataclasses.replace(_GEMMA_2B, lora_rank=16),
    "action_expert": dataclasses.replace(_GEMMA_300M, lora_rank=32),
}
PRESETS = {
    "pi0": PI0,
    "pi0_lora": dataclasses.replace(PI0, **_LORA),  # type: ignore[arg-type]
    "pi05": PI05,
    "pi05_lora": dataclasses.replace(PI05, **_LORA),  # type: ignore[arg-type]
    "small": SMALL,
    "nano": NANO,
}


def without_lora(config: Pi0Config) -> Pi0Config:
    """The network whose checkpoint LoRA starts from."""
    plain = [dataclasses.replace(expert, lora_rank=0) for expert in (config.paligemma, config.action_expert)]
    return dataclasses.replace(config, paligemma=plain[0], action_expert=plain[1])


def frozen_path(config: Pi0Config, path: str) -> bool:
    """Whether LoRA keeps this leaf: the language model's own weights, of those experts that have a rank.

    SigLIP, projections and the low-rank factors are trained, as in openpi.
    """
    if not config.lora or "/llm/" not in f"/{path}" or "lora" in path:
        return False
    expert = config.action_expert if "_1/" in path else config.paligemma
    return bool(expert.lora_rank)


def frozen_leaves(config: Pi0Config) -> Callable[[str], bool] | None:
    """Which leaves training keeps, by their paths; None: all are trained."""
    return functools.partial(frozen_path, config) if config.lora else None


def trained_as(config: Pi0Config, remat: str, attention: str) -> Pi0Config:
    """The network with a run's way to train. remat: empty keeps the preset's. Raises ValueError for unknown names."""
    return dataclasses.replace(config, remat=remat or config.remat, attention=attention)


def make_config(preset: str, features: Features, policy: PolicyConfig) -> Pi0Config:
    """The network for this robot. With `features.objects_shape` object poses take the images' place.

    pi0 and pi05 pad states and actions to 32; their prompts are at least as long as openpi's (48, 200).
    Raises ValueError for an unknown preset or a robot that does not fit it.
    """
    size = _find(preset)
    cameras = () if features.objects_shape else features.camera_names
    if not cameras and not features.objects_shape:
        raise ValueError(f"robot {features.robot_type} has neither cameras nor object poses: nothing to see with")
    return Pi0Config(
        action_dim=_padded(features, "action_dim", size.pad_dim),
        state_dim=_padded(features, "state_dim", size.pad_dim),
        action_horizon=policy.action_horizon,
        actions_per_token=policy.actions_per_token,
        max_token_len=max(policy.max_token_len, size.min_token_len),
        image_keys=cameras,
        image_px=size.image_px,
        objects_shape=features.objects_shape,
        paligemma=size.paligemma,
        action_expert=size.action_expert,
        siglip=size.siglip if cameras else None,
        vocab_size=PALIGEMMA_VOCAB if policy.tokenizer else size.vocab_size,
        pi05=size.pi05,
        discrete_state_input=size.pi05,
        dtype=size.dtype,
        remat=size.remat,
        unroll=size.unroll,
        augment=size.augment,
    )


def _find(preset: str) -> Preset:
    if preset not in PRESETS:
        raise ValueError(f"unknown preset {preset!r}; known are {sorted(PRESETS)}")
    return PRESETS[preset]


def _padded(features: Features, name: str, pad_dim: int) -> int:
    own = getattr(features, name)
    if pad_dim and own > pad_dim:
        raise ValueError(f"robot {features.robot_type}: {name} {own} exceeds the {pad_dim} of pi0")
    return pad_dim or own


def config_to_dict(config: Pi0Config) -> dict[str, Any]:
    """Plain values, ready for json."""
    return dataclasses.asdict(config)


def config_from_dict(values: dict[str, Any]) -> Pi0Config:
    """The inverse of `config_to_dict`. Raises TypeError naming an unknown or missing field."""
    objects, siglip = values["objects_shape"], values["siglip"]
    parts: dict[str, Any] = {
        "image_keys": tuple(values["image_keys"]),
        "objects_shape": None if objects is None else (int(objects[0]), int(objects[1])),
        "paligemma": GemmaConfig(**values["paligemma"]),
        "action_expert": GemmaConfig(**values["action_expert"]),
        "siglip": None if siglip is None else SigLIPConfig(**siglip),
    }
    if isinstance(values.get("remat"), bool):  # manifests of earlier versions
        parts["remat"] = "all" if values["remat"] else "off"
    return Pi0Config(**(values | parts))
