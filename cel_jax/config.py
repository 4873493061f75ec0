"""Configuration of a run: plain typed dataclasses, importable everywhere (no numpy, no jax).

Files under configs/ build a `RunConfig`; `--config.path=value` overrides a field. Defaults here are the paper's
(Table 5) unless the comment says otherwise; the simulated configs scale what must scale.
"""

# No `from __future__ import annotations` here: ml_collections reads the fields' types to parse `--config.path=value`.
import dataclasses
import hashlib
import json
from typing import Any


@dataclasses.dataclass
class TaskConfig:
    """What the robots do."""

    name: str = "phone_packaging"
    prompt: str = "Pack the phone."
    mode: str = "images"  # `images` or `state` (object poses as prefix tokens, no rendering)
    image_px: int = 96
    max_episode_s: float = 45.0
    no_progress_s: float = 4.0  # the paper's 8 s, scaled with the sped-up task
    pose_range: float = 1.0  # scale of the scene's variation; demonstrations may be narrower
    frame_deadline_s: float = 0.5  # a camera whose frame stands still for longer is a fault
    image_stride_frames: int = 3  # only frames that retrieval or the policy reads are rendered


@dataclasses.dataclass
class FleetConfig:
    """Who takes part. Robots are numbered; held-out robots never collect."""

    robots: int = 4
    first_robot: int = 0
    stores: int = 1
    inference_workers: int = 1
    minutes: float = 15.0  # collection and training end at the first of these limits
    max_episodes: int = 0  # 0: no limit
    real_time: bool = False  # simulated robots run as fast as they can
    seed: int = 0
    robots_are: str = "simulated"  # or `ghost` (recorded episodes, a stub policy), or yours: `package.module:function`
    learner: bool = True  # False: no training station (ghosts)
    labels: str = "simulator"  # or `operator`: a person starts and labels every episode, `python -m launch.console`
    label_deadline_s: float = 600.0  # an episode that no operator labels within it is discarded
    desk_silence_s: float = 5.0  # a robot without word of the operator's desk for longer stands still
    nodes: int = 1  # robots are spread over this many node agents; the rest is on the first


@dataclasses.dataclass
class GhostConfig:
    """Ghost robots: they replay recorded episodes, so that many of them drive the real bus, stores and supervisor."""

    episodes: str = ""  # a folder of recorded episodes (a run's experience/); empty: recorded once by the expert
    tapes: int = 6  # how many are recorded where none are given
    frames: int = 0  # longest replay; 0: whole episodes
    clock_factor: float = 1.0  # how much faster than recorded
    policy_cost_s: float = 0.03  # of the stub policy, for each batch


@dataclasses.dataclass
class PolicyConfig:
    """The shared policy."""

    preset: str = "nano"
    action_horizon: int = 30
    actions_per_token: int = 1
    execute_frames: int = 15  # robots execute this much of a chunk before the next request
    flow_steps: int = 10
    noise_scale: float = 1.0  # of the noise that sampling starts from; below 1 robots act closer to the mean action
    max_token_len: int = 16
    checkpoint: str = ""  # the start policy; empty: the run makes or finds one
    tokenizer: str = ""  # a PaliGemma sentencepiece file; empty: byte tokenizer


@dataclasses.dataclass
class BusConfig:
    """SwarmLink."""

    batch_target: int = 4
    batch_timeout_s: float = 0.02
    lease_s: float = 10.0
    reply_deadline_s: float = 30.0
    max_queue: int = 1024
    transfer_limit_bytes_s: int = 50_000_000
    piece_bytes: int = 262_144
    tcp_host: str = ""  # empty: ipc on one machine; else robots reach homes and stores by CURVE over TCP
    tcp_port: int = 5710  # the first of 3 + stores ports
    keys: str = ""  # folder of the CURVE keys; empty: ~/.config/cel_jax/keys/<name of the run>, never the run's folder
    key_name: str = ""  # the key of this machine's workers; empty: their role's


@dataclasses.dataclass
class ReplayConfig:
    """The store."""

    table: str = "auto"  # `reverb`, `memory`, or `auto`: Reverb where it is installed
    window_frames: int = 350_000
    min_frames: int = 60_000
    w_init: float = 0.5
    chunk_stride_frames: int = 1  # frames between chunk starts; `policy.execute_frames`: where robots asked
    shard_episodes: int = 8
    uniform_share: float = 0.0  # beyond the paper: share of uniform samples under the priorities


@dataclasses.dataclass
class FertConfig:
    """Failure-guided retrieval (paper Table 5)."""

    failure_retrieval: bool = True
    query_frames: int = 90  # L
    endpoint_offset_frames: int = 10  # delta
    top_k: int = 10
    h_pre_frames: int = 30
    h_post_frames: int = 30
    rho: float = 0.88
    stride_frames: int = 3
    scope: str = "fleet"  # `fleet`: one global top-K; `worker`: each store its own


@dataclasses.dataclass
class TrainConfig:
    """The learner."""

    batch_size: int = 1024
    micro_batch_size: int = 0  # 0: no gradient accumulation
    peak_lr: float = 2.5e-5
    warmup_steps: int = 80
    decay_steps: int = 10_000
    floor_lr_fraction: float = 0.1
    weight_decay: float = 1e-10
    clip_norm: float = 4.0
    ema_decay: float = 0.0  # 0: off; else the EMA is what is published
    sync_interval_steps: int = 500
    max_steps: int = 10_000
    checkpoint_interval_steps: int = 500
    keep_checkpoints: int = 2
    fsdp_devices: int = 1
    compute_dtype: str = "bfloat16"
    remat: str = ""  # what the backward pass computes again, a name of models/remat.py; empty: the preset's
    attention: str = "xla"  # or `cudnn`: flash attention, with bfloat16 on an NVIDIA GPU
    seed: int = 0


@dataclasses.dataclass
class InitConfig:
    """SFT on demonstrations: the start policy. The defaults are those measured for `nano` with object poses
    (`peak_lr` above all): released checkpoints want about 2.5e-5.
    """

    demos: str = ""  # a folder of LeRobot or RLDS data; empty: the scripted expert
    num_demos: int = 400  # at most, where they come from a folder
    demo_robots: int = 24
    first_robot: int = 1000
    pose_range: float = 1.0
    operators: str = "mixed"
    keep_failures: bool = False  # demonstrations that nobody labelled: all that the operators recorded
    disturbance_rad: float = 0.015  # smooth noise on executed (never on taught) joint targets, up to this level
    steps: int = 12_000
    batch_size: int = 256
    peak_lr: float = 3e-3
    warmup_steps: int = 80  # at most a tenth of the steps
    floor_lr_fraction: float = 0.02
    ema_decay: float = 0.995
    pose_loss_weight: float = 0.0  # simulated cameras alone: the tower also learns to tell object poses
    held_out_share: float = 0.1
    seed: int = 0


@dataclasses.dataclass
class EvalConfig:
    """Trials on robots that never collected."""

    robots: int = 2
    first_robot: int = 9000
    trials_per_robot: int = 60
    seed: int = 77_000
    processes: int = 0  # 0: one per core


@dataclasses.dataclass
class StudyConfig:
    """The lock-step study: rounds of collecting with one policy version, then `train.sync_interval_steps` updates."""

    rounds: int = 8
    episodes_per_round: int = 200
    processes: int = 0  # simulator processes; 0: one per core
    slots_per_process: int = 8
    eval_every_rounds: int = 0  # 0: only the start and the end


@dataclasses.dataclass
class RecoveryConfig:
    """HotSwarm."""

    heartbeat_s: float = 0.5
    environment_timeout_s: float = 10.0
    inference_timeout_s: float = 60.0
    training_timeout_s: float = 120.0
    store_timeout_s: float = 60.0
    backoff_s: float = 0.5
    max_backoff_s: float = 30.0
    inference_restarts: int = 100
    training_restarts: int = 100
    placement: str = "local"


@dataclasses.dataclass
class RunConfig:
    """One run. `name` is its folder under runs/."""

    name: str = "run"
    task: TaskConfig = dataclasses.field(default_factory=TaskConfig)
    fleet: FleetConfig = dataclasses.field(default_factory=FleetConfig)
    ghost: GhostConfig = dataclasses.field(default_factory=GhostConfig)
    policy: PolicyConfig = dataclasses.field(default_factory=PolicyConfig)
    bus: BusConfig = dataclasses.field(default_factory=BusConfig)
    replay: ReplayConfig = dataclasses.field(default_factory=ReplayConfig)
    fert: FertConfig = dataclasses.field(default_factory=FertConfig)
    train: TrainConfig = dataclasses.field(default_factory=TrainConfig)
    init: InitConfig = dataclasses.field(default_factory=InitConfig)
    eval: EvalConfig = dataclasses.field(default_factory=EvalConfig)
    study: StudyConfig = dataclasses.field(default_factory=StudyConfig)
    recovery: RecoveryConfig = dataclasses.field(default_factory=RecoveryConfig)


def to_dict(config: RunConfig) -> dict[str, Any]:
    """The configuration as plain nested dictionaries."""
    return dataclasses.asdict(config)


def from_dict(values: dict[str, Any]) -> RunConfig:
    """The inverse of `to_dict`. Raises ValueError naming an unknown field."""
    return _build(RunConfig, values, "config")


def _build(cls: type, values: dict[str, Any], path: str) -> Any:
    fields = {field.name: field for field in dataclasses.fields(cls)}
    unknown = sorted(set(values) - set(fields))
    if unknown:
        raise ValueError(f"{path}: unknown fields {unknown}; known are {sorted(fields)}")
    default = cls()
    kwargs = {}
    for name, value in values.items():
        part = getattr(default, name)
        kwargs[name] = _build(type(part), value, f"{path}.{name}") if dataclasses.is_dataclass(part) else value
    return cls(**kwargs)


def config_hash(config: RunConfig) -> str:
    """A short hash of everything that decides the outcome of a run."""
    text = json.dumps(to_dict(config), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
