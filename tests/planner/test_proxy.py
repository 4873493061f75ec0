"""The proxy answers as the chat-completions interface does, and records what it answered."""

from __future__ import annotations

import http.client
import json
import pathlib
import statistics
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from cel_jax.planner.proxy import Proxy
from cel_jax.planner.records import RecordLog
from tests.client_environment import client_python
from tests.planner.test_boundary import REQUEST, TOKENIZER, Scripted, recorder

SAID = 'go <tool_call>{"name":"pick","arguments":{"part":"cable"}}</tool_call>'
LONG = json.dumps({"messages": [{"role": "user", "content": "x " * 900}]}).encode()
CLIENT = "CEL_OPENAI_PYTHON"


@pytest.fixture
def served() -> Iterator[tuple[Proxy, RecordLog]]:
    log = RecordLog()
    with Proxy(recorder(Scripted(SAID, limit=400), log)) as proxy:
        yield proxy, log


def post(proxy: Proxy, body: bytes, path: str = "/episodes/a/v1/chat/completions") -> tuple[int, bytes]:
    request = urllib.request.Request(proxy.url + path, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_an_answer_carries_what_was_recorded(served: tuple[Proxy, RecordLog]) -> None:
    proxy, log = served
    status, body = post(proxy, json.dumps(REQUEST).encode())
    (record,) = log.records()
    answer = json.loads(body)
    assert status == 200 and record.episode == "a"
    assert tuple(answer["choices"][0]["token_ids"]) == record.response_ids
    assert tuple(answer["prompt_token_ids"]) == record.prompt_ids


def test_a_stream_has_every_id_once_and_the_text_of_the_whole_answer(served: tuple[Proxy, RecordLog]) -> None:
    proxy, log = served
    _, body = post(proxy, json.dumps(REQUEST | {"stream": True}).encode())
    lines = body.decode().strip().split("\n\n")
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    choices = [chunk["choices"][0] for chunk in chunks]
    (record,) = log.records()
    assert tuple(token for choice in choices for token in choice["token_ids"]) == record.response_ids
    assert tuple(value for choice in choices for value in choice["token_logprobs"]) == record.logprobs
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "go "
    assert choices[-1]["delta"]["tool_calls"][0]["function"]["arguments"] == '{"part":"cable"}'
    assert TOKENIZER.end_id == record.response_ids[-1]


@pytest.mark.parametrize(
    "path,body,status",
    [
        ("/v1/chat/completions", json.dumps(REQUEST).encode(), 404),
        ("/episodes/../v1/chat/completions", json.dumps(REQUEST).encode(), 404),
        ("/episodes/a/v1/chat/completions", b"{", 400),
        ("/episodes/a/v1/chat/completions", b"[]", 400),
        ("/episodes/a/v1/chat/completions", b"[" * 100_000, 400),
        ("/episodes/a/v1/chat/completions", json.dumps({"messages": [{"role": "king"}]}).encode(), 400),
        ("/episodes/a/v1/chat/completions", LONG, 400),
    ],
)  # fmt: skip
def test_bad_requests_are_answered_and_the_proxy_goes_on(
    served: tuple[Proxy, RecordLog], path: str, body: bytes, status: int
) -> None:
    proxy, _ = served
    found, answer = post(proxy, body, path)
    assert found == status and json.loads(answer)["error"]["message"]
    assert post(proxy, json.dumps(REQUEST).encode(), "/episodes/b/v1/chat/completions")[0] == 200


def test_a_body_that_is_too_large_is_not_read(served: tuple[Proxy, RecordLog]) -> None:
    proxy, log = served
    connection = http.client.HTTPConnection(proxy.url.removeprefix("http://"), timeout=20)
    connection.putrequest("POST", "/episodes/a/v1/chat/completions")
    connection.putheader("Content-Length", str(10**12))
    connection.endheaders()
    assert connection.getresponse().status == 413 and not log.records()


@pytest.mark.slow
def test_the_real_client(served: tuple[Proxy, RecordLog]) -> None:
    proxy, log = served
    check = pathlib.Path(__file__).with_name("openai_check.py")
    python = client_python(CLIENT, "openai", "openai")
    done = subprocess.run([python, str(check), proxy.url], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    first, second, refused = log.records()
    assert tuple(found["ids"]) == first.response_ids and tuple(found["streamed_ids"]) == second.response_ids
    assert found["call"] == found["streamed_call"] == '{"part":"cable"}'
    assert found["text"] == found["streamed_text"] == "go " and found["finish"] == "tool_calls"
    assert found["refused"] == "context_length_exceeded" and refused.finish_reason == "context_overflow"


def test_answers_on_a_kept_connection_do_not_wait_for_delayed_acknowledgements(
    served: tuple[Proxy, RecordLog],
) -> None:
    proxy, _ = served
    connection = http.client.HTTPConnection(proxy.url.removeprefix("http://"), timeout=20)
    taken_s = []
    for _ in range(15):
        start = time.perf_counter()
        connection.request("POST", "/episodes/k/v1/chat/completions", json.dumps(REQUEST))
        connection.getresponse().read()
        taken_s.append(time.perf_counter() - start)
    connection.close()
    assert statistics.median(taken_s) < 0.03, "40 ms is the peer's delayed ACK: Nagle's algorithm is on"
