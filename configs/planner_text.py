"""A 0.3 M planner on the text tabletop: the whole pipeline on a laptop.

    python -m launch.planner_sft --config=planner_text
    python -m launch.planner_rl --config=planner_text
    python -m launch.planner_eval --config=planner_text

Hardware: two CPU cores, 2 GB of memory; a few minutes for all three. The source's rates (1e-5 and 1e-6) belong to a
9B model; a model of 0.3 M from random weights needs larger ones.
"""

from cel_jax.planner.config import EvalConfig, HarnessConfig, ModelConfig, PlannerConfig, RlConfig, SftConfig


def get_config() -> PlannerConfig:
    return PlannerConfig(
        name="planner_text",
        model=ModelConfig(preset="tiny", max_prompt_tokens=160, max_response_tokens=40),
        harness=HarnessConfig(max_turns=24, max_episode_s=600.0),
        sft=SftConfig(teacher_episodes=700, steps=240, batch_size=64, peak_lr=3e-3, warmup_steps=20),
        rl=RlConfig(rounds=10, groups=32, attempts=6, peak_lr=3e-4),
        eval=EvalConfig(attempts=1, top_p=1.0, top_k=0),
    )
