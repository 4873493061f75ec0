"""Run by the tests in an environment of its own: the real `openai` client against the proxy at argv[1]."""

import json
import sys

import openai

client = openai.OpenAI(base_url=f"{sys.argv[1]}/episodes/real/v1", api_key="any", max_retries=0, timeout=20)
ask = {"model": "planner", "messages": [{"role": "user", "content": "pick the cable"}]}
whole = client.chat.completions.create(**ask)
chunks = list(client.chat.completions.create(**ask, stream=True))
try:
    client.chat.completions.create(model="planner", messages=[{"role": "user", "content": "long " * 200}])
    refused = ""
except openai.BadRequestError as error:
    refused = error.code
found = {
    "call": whole.choices[0].message.tool_calls[0].function.arguments,
    "ids": whole.choices[0].token_ids,
    "streamed_ids": [token for chunk in chunks for token in chunk.choices[0].token_ids],
    "streamed_text": "".join(chunk.choices[0].delta.content or "" for chunk in chunks),
    "text": whole.choices[0].message.content,
    "streamed_call": chunks[-1].choices[0].delta.tool_calls[0].function.arguments,
    "finish": chunks[-1].choices[0].finish_reason,
    "refused": refused,
}
print(json.dumps(found))
