"""Phone packaging with object poses in place of images: the algorithm on a laptop, no rendering.

    python -m launch.fleet --config=phone_packaging_state

Hardware: two CPU cores, 4 GB of memory. 20 minutes; about 1,200 episodes and 1,300 steps. The start policy is
shipped (policies/phone_packaging_state). Expect 45 to 50 % success at the start and no gain from it; a start policy
that gains (28 to 46 % in two rounds) and its commands are in docs/findings.md.
"""

from cel_jax.config import FertConfig, FleetConfig, PolicyConfig, ReplayConfig, RunConfig, TaskConfig, TrainConfig


def get_config() -> RunConfig:
    return RunConfig(
        name="phone_packaging_state",
        task=TaskConfig(mode="state", image_stride_frames=1, prompt="Box", no_progress_s=6.0, max_episode_s=60.0),
        fleet=FleetConfig(robots=4, minutes=20.0),
        policy=PolicyConfig(preset="nano", actions_per_token=3, flow_steps=5, max_token_len=4, execute_frames=10),
        replay=ReplayConfig(min_frames=5_000),
        fert=FertConfig(query_frames=30, endpoint_offset_frames=60, h_pre_frames=25, h_post_frames=25),
        train=TrainConfig(
            batch_size=128,
            peak_lr=1e-4,
            sync_interval_steps=50,
            ema_decay=0.995,
            compute_dtype="float32",
            decay_steps=4000,
            max_steps=100_000,
            checkpoint_interval_steps=50,
        ),
    )
