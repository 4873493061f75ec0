"""An on_retire hook for the tests: it writes to the controller's log."""

from cel_jax.bus.identity import Identity


def note_retired(identity: Identity) -> None:
    print(f"retired {identity.worker}", flush=True)
