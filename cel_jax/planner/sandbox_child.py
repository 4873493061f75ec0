"""The sandbox's process: limits itself, reads the code, runs it in the interpreter, asks the parent for every skill.

Run as `python -I -S sandbox_child.py CPU_S MEMORY_BYTES SKILL..`, lines of JSON on standard input and output. Standard
library only. It can open no file, start no process and write no file once the limits hold.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable
from typing import Any


def limit(cpu_s: int, memory_bytes: int) -> None:
    """From here on: no new files, no new processes, bounded time and memory."""
    for kind, value in (
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 3),
    ):
        resource.setrlimit(kind, (value, value))


def ask(message: dict[str, Any]) -> dict[str, Any]:
    """One question to the parent and its answer."""
    print(json.dumps(message), flush=True)
    line = sys.stdin.readline()
    if not line:
        os._exit(3)
    answer: dict[str, Any] = json.loads(line)
    return answer


def skill(name: str, error: type[Exception]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        answer = ask({"skill": name, "args": list(args), "kwargs": kwargs})
        if "error" in answer:
            raise error(answer["error"])
        return answer["result"]

    return call


def main() -> None:
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from code_interpreter import CodeError, Interpreter

    code = json.loads(sys.stdin.readline())["code"]
    limit(int(sys.argv[1]), int(sys.argv[2]))
    interpreter = Interpreter({name: skill(name, CodeError) for name in sys.argv[3:]})
    error = ""
    try:
        interpreter.run(code)
    except CodeError as raised:
        error = str(raised)
    print(json.dumps({"printed": interpreter.printed, "error": error}), flush=True)


if __name__ == "__main__":
    main()
