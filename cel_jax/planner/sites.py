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
from cel_jax.planner.tabletop.interface import Tabletop
from cel_jax.planner.tabletop.text_world import TextTabletop
from cel_jax.planner.tool_harness import Chat, Limits, ToolHarness


def make_table(config: HarnessConfig) -> Tabletop:
    """The configured tabletop. Raises ValueError with the known ones."""
    if config.tabletop == "text":
        return TextTabletop()
    raise ValueError(f"harness.tabletop {config.tabletop!r}; expected text, the only one there is so far")


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
