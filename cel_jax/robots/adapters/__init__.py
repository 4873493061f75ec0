"""Robots of other projects behind the five methods of `cel_jax.robots.protocol.Robot`."""
