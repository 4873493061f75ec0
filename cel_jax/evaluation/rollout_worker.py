"""A worker process of the rollout: takes commands for its slots, answers each message with exactly one."""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from cel_jax.data.episode import Observation
from cel_jax.evaluation.rollout_slot import Slot
from cel_jax.evaluation.rollout_wire import pack, pack_result, unpack
from cel_jax.evaluation.trials import MakeDriver, MakeRobot, RolloutOptions, Trial

PARENT_CHECK_S = 1.0


def worker_main(
    connection: Connection, make_robot: MakeRobot, make_driver: MakeDriver | None, options: RolloutOptions, name: str
) -> None:
    """Serves until it is told to close or the parent is gone. An exception is sent to the parent, then raised."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    slots = [Slot(make_robot, options, name) for _ in range(options.slots_per_process)]
    try:
        while (message := _next_message(connection)) is not None:
            connection.send_bytes(_serve(slots, message, make_driver))
    except Exception:
        connection.send_bytes(pack({"error": traceback.format_exc()}))
        raise
    finally:
        for slot in slots:
            slot.close()


def _next_message(connection: Connection) -> bytes | None:
    """The next command message; None when the parent closed the pipe, said so, or died."""
    parent = multiprocessing.parent_process()
    while not connection.poll(PARENT_CHECK_S):
        if parent is None or not parent.is_alive():
            return None
    try:
        return connection.recv_bytes() or None
    except EOFError:
        return None


def _serve(slots: list[Slot], message: bytes, make_driver: MakeDriver | None) -> bytes:
    """Carries out one message's commands, slot after slot, and packs what they gave."""
    header, chunks = unpack(message)
    replies, arrays, chunk = [], [], iter(chunks)
    for command in header["commands"]:
        slot = slots[command["slot"]]
        actions = next(chunk) if "version" in command else None
        reply, more = _command(slot, command, actions, make_driver)
        replies.append(reply | {"slot": command["slot"], "count": len(more)})
        arrays += more
    return pack({"replies": replies}, arrays)


def _command(
    slot: Slot, command: dict[str, Any], actions: np.ndarray | None, make_driver: MakeDriver | None
) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Starts a trial or executes a chunk; gives the next observation or the trial's result."""
    if actions is None:
        slot.start(Trial(**command["trial"]))
        result = slot.demonstrate(make_driver) if make_driver is not None else None
    else:
        result = slot.execute(actions, command["version"])
    if result is None:
        return _pack_observation(slot.observe(), slot.steps)
    header, arrays = pack_result(result)
    return {"result": header}, arrays


def _pack_observation(observation: Observation, step: int) -> tuple[dict[str, Any], list[np.ndarray]]:
    cameras = list(observation.images)
    objects = [] if observation.objects is None else [np.asarray(observation.objects, np.float32)]
    arrays = [np.asarray(observation.state, np.float32), *objects, *(observation.images[c] for c in cameras)]
    return {"step": step, "cameras": cameras, "has_objects": bool(objects)}, arrays
