"""Ghost robots on the real bus, stores and supervisor: recorded episodes, a stub policy of fixed cost, no physics.

    python -m launch.fleet --config=ghosts --robots=96

Hardware: two CPU cores, 8 GB of memory for 96 robots (about 45 MB each). Two inference workers (30 ms a batch, a
sleep), two stores. Robots run at the recorded 30 Hz and ask for actions every 15 frames, twice a second each; the
episodes are recorded once by the scripted expert, or taken from a run with --config.ghost.episodes=runs/X/experience.
No learner: nothing trains here. The ghosts' ledgers are in runs/ghosts/ledger, what they prove is counted by
`python -m bench.fault_matrix`.
"""

from cel_jax.config import (
    BusConfig,
    FertConfig,
    FleetConfig,
    GhostConfig,
    PolicyConfig,
    RecoveryConfig,
    ReplayConfig,
    RunConfig,
    TaskConfig,
)


def get_config() -> RunConfig:
    return RunConfig(
        name="ghosts",
        task=TaskConfig(mode="state", image_stride_frames=1, prompt="Box", no_progress_s=6.0, max_episode_s=60.0),
        fleet=FleetConfig(
            robots=96, robots_are="ghost", learner=False, stores=2, inference_workers=2, minutes=20.0, real_time=True
        ),
        ghost=GhostConfig(clock_factor=1.0, policy_cost_s=0.03),
        policy=PolicyConfig(preset="nano", actions_per_token=3, max_token_len=4, execute_frames=15),
        bus=BusConfig(batch_target=32),
        replay=ReplayConfig(table="memory", window_frames=100_000),
        fert=FertConfig(query_frames=30, endpoint_offset_frames=60, h_pre_frames=25, h_post_frames=25),
        recovery=RecoveryConfig(environment_timeout_s=10.0),
    )
