"""Configuration of planner post-training: plain typed dataclasses. Defaults are the source's; configs scale them."""

# No `from __future__ import annotations` here: ml_collections reads the fields' types to parse `--config.path=value`.
import dataclasses
import hashlib
import json


@dataclasses.dataclass
class ModelConfig:
    """The planner's language model."""

    preset: str = "tiny"  # random weights of this size (`decoder.preset`), where no checkpoint is named
    checkpoint: str = ""  # a folder with config.json and safetensors, a .gguf file, or `smollm2`
    max_prompt_tokens: int = 192  # a longer prompt ends the episode as a task failure
    max_response_tokens: int = 48
    rollout_dtype: str = "float32"  # `bfloat16` makes the importance weights work
    train_dtype: str = "float32"
    fsdp_devices: int = 1


@dataclasses.dataclass
class HarnessConfig:
    """What wraps the planner."""

    kind: str = "tools"  # `tools`: calls of frozen skills; `code`: restricted Python
    tabletop: str = "text"  # `text`: the fast text model; `physical`: scripted arms in MuJoCo
    slots: int = 96  # episodes side by side
    max_turns: int = 100
    max_episode_s: float = 7200.0
    keep_exchanges: int = 1  # older exchanges are pruned from the context
    sandbox_cpu_s: float = 2.0
    sandbox_memory_bytes: int = 256 * 1024 * 1024


@dataclasses.dataclass
class SftConfig:
    """Supervised start on the teacher's successes."""

    teacher_episodes: int = 700  # attempted; only successes teach
    mode: str = "rewrite"  # `rewrite`: rewrite and filter; `mask`: memory-dependent responses only masked
    steps: int = 216
    batch_size: int = 64
    micro_batch_size: int = 0  # 0: no gradient accumulation
    peak_lr: float = 1e-5
    warmup_steps: int = 10
    clip_norm: float = 1.0
    judge_url: str = ""  # a chat endpoint; empty: the rule-based judge
    judge_deadline_s: float = 30.0


@dataclasses.dataclass
class RlConfig:
    """Multi-turn RL on terminal success."""

    rounds: int = 9
    groups: int = 64
    attempts: int = 6
    responses_per_episode: int = 16
    batch_size: int = 128
    micro_batch_size: int = 0
    peak_lr: float = 1e-6
    clip_norm: float = 1.0
    weight_cap: float = 2.0  # C
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float = 3.0  # d
    normalizer: str = "token"  # Z: `token`, `sequence` or `episode` mean
    keep_checkpoints: int = 2


@dataclasses.dataclass
class EvalConfig:
    """Paired trials on initial states that never train."""

    attempts: int = 1
    temperature: float = 1.0
    top_p: float = 0.95
    top_k: int = 20
    presence_penalty: float = 0.0  # the source's 1.5 suits prose of a 9B model, not the short calls of a small one


@dataclasses.dataclass
class PlannerConfig:
    """One run; `name` is its folder under runs/."""

    name: str = "planner"
    seed: int = 0
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    harness: HarnessConfig = dataclasses.field(default_factory=HarnessConfig)
    sft: SftConfig = dataclasses.field(default_factory=SftConfig)
    rl: RlConfig = dataclasses.field(default_factory=RlConfig)
    eval: EvalConfig = dataclasses.field(default_factory=EvalConfig)


def config_hash(config: PlannerConfig) -> str:
    """A short hash of everything that decides the outcome."""
    return hashlib.sha256(json.dumps(dataclasses.asdict(config), sort_keys=True).encode()).hexdigest()[:16]
