"""Run under an interpreter that has openpi-client: unchanged clients against a server. Prints one line of JSON."""

import json
import sys
import threading

import numpy as np
from openpi_client.websocket_client_policy import WebsocketClientPolicy


def ask(port, observation, count, results):
    client = WebsocketClientPolicy("127.0.0.1", port)
    for _ in range(count):
        results.append(client.infer(observation))


def main(port, observation_file):
    with np.load(observation_file) as stored:
        observation = {name.replace("__", "/"): stored[name] for name in stored.files}
    observation["prompt"] = "Pack the phone."
    metadata = WebsocketClientPolicy("127.0.0.1", port).get_server_metadata()
    results = []
    threads = [threading.Thread(target=ask, args=(port, observation, 5, results)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    try:
        WebsocketClientPolicy("127.0.0.1", port).infer({"prompt": "no state"})
        refusal = ""
    except RuntimeError as error:
        refusal = str(error)
    print(
        json.dumps(
            {
                "metadata": metadata,
                "count": len(results),
                "shape": list(results[0]["actions"].shape),
                "finite": all(bool(np.isfinite(one["actions"]).all()) for one in results),
                "keys": sorted(results[0]),
                "batches": [one["server_timing"]["batch"] for one in results],
                "previous": any("prev_total_ms" in one["server_timing"] for one in results),
                "refusal": refusal[-400:],
            }
        )
    )


main(int(sys.argv[1]), sys.argv[2])
