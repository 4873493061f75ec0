"""Tells others of retired workers, from a thread of its own, so that a slow hook delays no recovery."""

from __future__ import annotations

import importlib
import queue
import sys
import threading
import traceback
from collections.abc import Callable

from cel_jax.bus.identity import Identity

LIMIT = 1024


class RetireHook:
    """Calls `hook(identity)` for each retired worker in order. A hook that raises is reported by `on_error`."""

    def __init__(self, hook: Callable[[Identity], None], on_error: Callable[[Identity, str], None]) -> None:
        self._hook, self._on_error = hook, on_error
        self._queue: queue.Queue[Identity | None] = queue.Queue(LIMIT)
        self._thread = threading.Thread(target=self._run, name="on_retire", daemon=True)
        self._thread.start()

    def tell(self, identity: Identity) -> None:
        """Raises queue.Full if the hook is LIMIT workers behind."""
        self._queue.put_nowait(identity)

    def close(self, deadline_s: float = 5.0) -> None:
        """Lets the queue run empty, at most `deadline_s`."""
        self._queue.put(None, timeout=deadline_s)
        self._thread.join(timeout=deadline_s)

    def _run(self) -> None:
        while (identity := self._queue.get()) is not None:
            try:
                self._hook(identity)
            except Exception:
                self._on_error(identity, traceback.format_exc())


def load_hook(name: str) -> Callable[[Identity], None]:
    """`module:function`. Raises ImportError or AttributeError naming it."""
    module, _, function = name.partition(":")
    hook: Callable[[Identity], None] = getattr(importlib.import_module(module), function)
    return hook


def print_error(identity: Identity, text: str) -> None:
    """The default `on_error`: the controller's log."""
    print(f"on_retire({identity.worker}) failed:\n{text}", file=sys.stderr, flush=True)
