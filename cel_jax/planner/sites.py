"""Sites by configuration: which harness on which tabletop, reached in this process through a recorder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cel_jax.planner.adapters import Adapter, from_code_harness, from_tool_harness
from cel_jax.planner.batcher import Batcher
from cel_jax.planner.code_harness import CodeHarness, SandboxLimits
from cel_jax.planner.config import HarnessConfig
from cel_jax.planner.recorder import Recorder, completion_body
from cel_jax.planner.rollouts import Harness, Site
from cel_jax.planner.tabletop.packing import PackingTable
from cel_jax.planner.tabletop.text_world import TextTabletop
from cel_jax.planner.tool_harness import Chat, Limits, ToolHarness


class SimulatorMissing(RuntimeError):
    """The physical tabletop is asked for where MuJoCo is not installed."""


def make_table(config: HarnessConfig) -> PackingTable:
    """The configured tabletop. Raises ValueError with the known ones, or SimulatorMissing."""
    if config.tabletop == "text":
        return TextTabletop()
    if config.tabletop == "physical":
        return _physical_table()
    raise ValueError(f"harness.tabletop {config.tabletop!r}; expected text or physical")


def _physical_table() -> PackingTable:
    """Imported here only: the text model runs without a simulator."""
    try:
        from cel_jax.planner.tabletop.physical_world import PhysicalTabletop
    except ModuleNotFoundError as error:
        if error.name != "mujoco":
            raise
        raise SimulatorMissing("harness.tabletop=physical needs MuJoCo: pip install 'cel-jax[sim]'") from error
    return PhysicalTabletop()


def make_harness(config: HarnessConfig) -> Harness:
    """The configured harness with a table of its own."""
    limits = Limits(config.max_turns, config.max_episode_s)
    if config.kind == "tools":
        return ToolHarness(make_table(config), limits, config.keep_exchanges)
    if config.kind == "code":
        sandbox = SandboxLimits(config.sandbox_cpu_s, config.sandbox_memory_bytes)
        return CodeHarness(make_table(config), limits, sandbox, config.keep_exchanges)
    raise ValueError(f"harness.kind {config.kind!r}; expected tools or code")


def adapter_of(config: HarnessConfig) -> Adapter:
    """The adapter that fits the harness."""
    return from_code_harness if config.kind == "code" else from_tool_harness


def direct_chat(recorder: Recorder) -> Callable[[str], Chat]:
    """Episode -> a chat function that passes the recorder without HTTP."""

    def chat_of(episode: str) -> Chat:
        def chat(request: Mapping[str, Any]) -> Mapping[str, Any]:
            return completion_body(*recorder.call(episode, request))

        return chat

    return chat_of


def local_site(config: HarnessConfig, recorder: Recorder, batcher: Batcher) -> Site:
    """Harnesses of this process in front of our sampler."""
    return Site(
        lambda: make_harness(config),
        adapter_of(config),
        direct_chat(recorder),
        recorder.close_episode,
        batcher.set_target,
    )
