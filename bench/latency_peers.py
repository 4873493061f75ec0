"""Round trips of one observation over loopback TCP with another library, in that library's own environment.

    PEER_PYTHON bench/latency_peers.py agentlace|grpc [--samples=1000] [--seconds=3]

Imports nothing of this project: numpy and the peer alone. Prints one JSON line. The payload is that of
`bench.latency`: three images of 224 x 224 and a state; the server checksums every byte, the client compares.
"""

from __future__ import annotations

import argparse
import collections
import json
import logging
import multiprocessing
import time
import zlib
from collections.abc import Callable
from concurrent import futures
from typing import Any

import numpy as np

IMAGE_SHAPE, CAMERAS, STATE_DIM, ACTIONS = (224, 224, 3), ("head", "left_wrist", "right_wrist"), 16, (30, 16)
WARM, IN_FLIGHT, PORT = 50, 8, 45_710
DEADLINE_S = 20.0


def make_arrays() -> dict[str, np.ndarray]:
    """Noise, which no compression makes smaller; the same bytes everywhere."""
    rng = np.random.default_rng(0)
    images = {name: rng.integers(0, 256, IMAGE_SHAPE, np.uint8) for name in CAMERAS}
    return {**images, "state": np.zeros(STATE_DIM, np.float32)}


def checksum(parts: Any) -> int:
    """CRC32 over all parts in order."""
    crc = 0
    for part in parts:
        crc = zlib.crc32(part, crc)
    return crc


def round_trips(call: Callable[[], int], expected: int, samples: int) -> list[float]:
    """Seconds of each of `samples` calls, one after the other. Raises ValueError for a wrong checksum."""
    taken = []
    for number in range(samples + WARM):
        start_s = time.perf_counter()
        found = call()
        taken.append(time.perf_counter() - start_s)
        if found != expected:
            raise ValueError(f"call {number}: checksum {found}, expected {expected}")
    return taken[WARM:]


def messages_s(submit: Callable[[], Callable[[], int]], seconds: float, in_flight: int = IN_FLIGHT) -> float:
    """Calls a second with `in_flight` of them open. `submit` returns what waits for its answer."""
    open_calls: collections.deque[Callable[[], int]] = collections.deque(submit() for _ in range(in_flight))
    start_s, done = time.perf_counter(), 0
    while time.perf_counter() - start_s < seconds:
        open_calls.popleft()()
        done += 1
        open_calls.append(submit())
    rate = done / (time.perf_counter() - start_s)
    for wait in open_calls:
        wait()
    return rate


def summary(peer: str, taken: list[float], rate: float, encryption: str, version: str) -> dict[str, Any]:
    p50_s, p99_s = np.percentile(taken, [50, 99])
    return {
        "peer": peer, "p50_ms": 1e3 * float(p50_s), "p99_ms": 1e3 * float(p99_s), "messages_s": rate,
        "encryption": encryption, "version": version, "samples": len(taken),
    }  # fmt: skip


# -- agentlace: a REQ/REP pair, pickle and lz4; one call at a time -------------------------------------------------


def serve_agentlace() -> None:
    from agentlace.inference import InferenceServer

    def observe(payload: dict[str, np.ndarray]) -> dict[str, Any]:
        return {"crc": checksum(payload.values()), "actions": np.zeros(ACTIONS, np.float32)}

    server = InferenceServer(PORT)
    logging.getLogger().setLevel(logging.WARNING)
    server.register_interface("observe", observe)
    server.start()


def run_agentlace(samples: int, seconds: float) -> dict[str, Any]:
    from agentlace.inference import InferenceClient

    client, arrays = InferenceClient("127.0.0.1", PORT), make_arrays()
    logging.getLogger().setLevel(logging.WARNING)
    ends_s = time.monotonic() + DEADLINE_S
    while "observe" not in client.interfaces():
        if time.monotonic() > ends_s:
            raise TimeoutError("agentlace's server does not answer")
    expected = checksum(arrays.values())

    def call() -> int:
        return int(client.call("observe", arrays)["crc"])

    taken = round_trips(call, expected, samples)
    rate = messages_s(lambda: call, seconds, 1)
    return summary("agentlace", taken, rate, "none", "0.1.4")


# -- gRPC: one unary call of raw bytes, no protobuf to encode ------------------------------------------------------


def serve_grpc() -> None:
    import grpc

    actions = np.zeros(ACTIONS, np.float32).tobytes()

    def observe(request: bytes, context: Any) -> bytes:
        return zlib.crc32(request).to_bytes(4, "little") + actions

    handler = grpc.method_handlers_generic_handler("peer", {"observe": grpc.unary_unary_rpc_method_handler(observe)})
    server = grpc.server(futures.ThreadPoolExecutor(4), options=_grpc_options())
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(f"127.0.0.1:{PORT}")
    server.start()
    server.wait_for_termination(600)


def _grpc_options() -> list[tuple[str, int]]:
    return [("grpc.max_receive_message_length", 1 << 26), ("grpc.max_send_message_length", 1 << 26)]


def run_grpc(samples: int, seconds: float) -> dict[str, Any]:
    import grpc

    arrays = make_arrays()
    expected = checksum(arrays.values())
    with grpc.insecure_channel(f"127.0.0.1:{PORT}", options=_grpc_options()) as channel:
        observe = channel.unary_unary("/peer/observe")
        grpc.channel_ready_future(channel).result(DEADLINE_S)

        def send() -> Any:
            return observe.future(b"".join(array.tobytes() for array in arrays.values()), timeout=DEADLINE_S)

        def crc(reply: bytes) -> int:
            return int.from_bytes(reply[:4], "little")

        def submit() -> Callable[[], int]:
            future = send()
            return lambda: crc(future.result())

        taken = round_trips(lambda: crc(send().result()), expected, samples)
        return summary("grpc", taken, messages_s(submit, seconds), "none (insecure channel)", grpc.__version__)


PEERS = {"agentlace": (serve_agentlace, run_agentlace), "grpc": (serve_grpc, run_grpc)}


def cli() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=3.0)
    flags = parser.parse_args()
    serve, run = PEERS[flags.peer]
    server = multiprocessing.get_context("spawn").Process(target=serve, daemon=True)
    server.start()
    try:
        print(json.dumps(run(flags.samples, flags.seconds)), flush=True)
    finally:
        server.terminate()
        server.join(10)
    return 0


if __name__ == "__main__":
    raise SystemExit(cli())
