"""The teacher's episodes: played through the same harness and recorded at the same boundary as the student's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cel_jax.planner.advantages import stable_hash
from cel_jax.planner.chat import tool_call
from cel_jax.planner.recorder import Recorder, Reply, completion_body
from cel_jax.planner.records import CallRecord, Message, RecordLog, Sampling
from cel_jax.planner.rollouts import Spec
from cel_jax.planner.splits import TRAINING_STATES
from cel_jax.planner.tabletop.packing import PackingTable
from cel_jax.planner.tabletop.teacher import Teacher, recall
from cel_jax.planner.tool_harness import Limits, ToolHarness

MEMORY_TOOL = "recall"


@dataclasses.dataclass(frozen=True)
class Demonstration:
    """One teacher episode: its records, its responses, and how it ended."""

    spec: Spec
    records: tuple[CallRecord, ...]
    responses: tuple[Message, ...]
    status: str

    @property
    def success(self) -> bool:
        return self.status == "success"


class TeacherBackend:
    """Answers requests with the scripted teacher's next move at one table. careful: without slips on purpose."""

    def __init__(self, table: PackingTable, seed: int, careful: bool = False) -> None:
        self._teacher = Teacher(table, seed, careful)
        self.responses: list[Message] = []

    def complete(self, request: Mapping[str, Any], sampling: Sampling, name: str, seed: int) -> Reply:
        move = self._teacher.next_move()
        call = tool_call(move.name, move.arguments_json, f"{name}-0")
        message: Message = {"role": "assistant", "content": move.text, "tool_calls": [call]}
        self.responses.append(message)
        return Reply(message, (), (), (), "tool_calls")

    def pieces(self, reply: Reply) -> list[str]:
        return [str(reply.message["content"])]


def training_specs(tasks: Sequence[str], episodes: int, seed: int) -> list[Spec]:
    """Distinct pairs of task and training state, and further attempts once all pairs are used."""
    pairs = [(task, state) for task in tasks for state in TRAINING_STATES]
    rng = np.random.default_rng([37, seed])
    rounds = -(-episodes // len(pairs))
    order = [(pairs[i], attempt) for attempt in range(rounds) for i in rng.permutation(len(pairs))]
    return [Spec(task, state, attempt) for (task, state), attempt in order[:episodes]]


def demonstrate(
    table: PackingTable, spec: Spec, limits: Limits, keep_exchanges: int, seed: int, careful: bool = False
) -> Demonstration:
    """One episode of the teacher with its memory."""
    log = RecordLog()
    harness = ToolHarness(table, limits, keep_exchanges, recall)
    backend = TeacherBackend(table, stable_hash(f"{seed}/{spec.episode}"), careful)
    recorder = Recorder(backend, log, -1, Sampling(), seed)
    chat = lambda request: completion_body(*recorder.call(spec.episode, request))  # noqa: E731
    ended = harness.run(spec.task, spec.initial_state, spec.attempt, chat)
    return Demonstration(spec, tuple(log.records()), tuple(backend.responses), ended.status)


def corpus(demonstrations: Sequence[Demonstration]) -> list[str]:
    """All texts that the demonstrations show: what a vocabulary is made of."""
    texts: list[str] = ["<|im_start|>system\n<|im_start|>user\n<|im_start|>assistant\n<|im_start|>tool\n"]
    for demonstration in demonstrations:
        for record in demonstration.records:
            texts += [str(message.get("content") or "") for message in record.messages]
        for response in demonstration.responses:
            call = response["tool_calls"][0]["function"]
            texts += [response["content"], f'{{"name":"{call["name"]}","arguments":{call["arguments"]}}}']
            texts.append("Next: " + call["name"] + " " + " ".join(_values(call["arguments"])) + ".")
    return texts


def _values(arguments_json: str) -> list[str]:
    return arguments_json.strip("{}").replace('"', "").replace(":", ",").split(",")[1::2]
