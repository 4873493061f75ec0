"""Phone packaging with images on simulated robots: the default run.

    python -m launch.fleet --config=phone_packaging

Hardware: two CPU cores, 6 GB of memory (a GPU is used where jax finds one). Needs a start policy: none is shipped
yet, see `python -m launch.initialize --config=phone_packaging`. The run collects with four robots, trains, publishes,
and ends with the evaluation table. No numbers to expect yet.
"""

from cel_jax.config import FertConfig, FleetConfig, PolicyConfig, ReplayConfig, RunConfig, TaskConfig, TrainConfig


def get_config() -> RunConfig:
    return RunConfig(
        name="phone_packaging",
        task=TaskConfig(mode="images"),
        fleet=FleetConfig(robots=4, minutes=12.0),
        policy=PolicyConfig(preset="nano", actions_per_token=3, flow_steps=5),
        replay=ReplayConfig(min_frames=1_500),
        # The second that ends two seconds before the failure: its last frames show a robot that is stuck already.
        fert=FertConfig(query_frames=30, endpoint_offset_frames=60, h_pre_frames=25, h_post_frames=25),
        train=TrainConfig(
            batch_size=64,
            peak_lr=1e-4,
            sync_interval_steps=40,
            ema_decay=0.99,
            compute_dtype="float32",
            decay_steps=4000,
            max_steps=100_000,
            checkpoint_interval_steps=40,
        ),
    )
