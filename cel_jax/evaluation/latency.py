"""The latencies of a run's channels in words: observation to action, labelled episode to store."""

from __future__ import annotations

from collections.abc import Mapping

from cel_jax.bus.histogram import Histogram

QUANTILES = (0.5, 0.9, 0.99, 1.0)


def lines(found: Mapping[str, Histogram]) -> list[str]:
    """A line for each channel."""
    return [_line(channel, one) for channel, one in sorted(found.items())]


def _line(channel: str, one: Histogram) -> str:
    values = ", ".join(f"{_name(share)} {1e3 * one.quantile_s(share):.1f} ms" for share in QUANTILES)
    return f"{channel}: {one.total} measured, {values}"


def _name(share: float) -> str:
    return "max" if share == 1.0 else f"p{100 * share:g}"
