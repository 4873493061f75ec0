"""Batches in order, few ahead, with their errors."""

from __future__ import annotations

import threading

import pytest

from cel_jax.fert.prefetch import Prefetcher


def test_batches_come_in_order_and_at_most_two_are_made_ahead():
    made, two = [], threading.Event()

    def make(number):
        made.append(number)
        if len(made) == 2:
            two.set()
        return number

    ahead = Prefetcher(make, first=5, depth=2)
    assert two.wait(30)
    ahead._thread.join(0.2)  # time in which a third could be made
    assert made == [5, 6]
    assert [ahead.get(30) for _ in range(6)] == [5, 6, 7, 8, 9, 10]
    ahead.close()
    assert len(made) <= 8


def test_nothing_yet_is_none_and_is_asked_again():
    answers = iter([None, None, "a"])
    ahead = Prefetcher(lambda number: next(answers, "later"), 0)
    assert ahead.get(30) == "a"
    ahead.close()
    empty = Prefetcher(lambda number: None, 0)
    assert empty.get(0.01) is None
    empty.close()


def test_an_error_is_raised_each_time_and_after_the_batches_before_it():
    def make(number):
        if number == 1:
            raise ValueError("episode e7 is damaged")
        return number

    ahead = Prefetcher(make, 0)
    assert ahead.get(30) == 0
    for _ in range(2):
        with pytest.raises(ValueError, match="e7 is damaged"):
            ahead.get(30)
    ahead.close()


def test_closing_a_stuck_thread_says_so():
    release = threading.Event()
    ahead = Prefetcher(lambda number: release.wait(60), 0)
    with pytest.raises(TimeoutError, match="batch 0 is still being made"):
        ahead.close(timeout_s=0.05)
    release.set()
    ahead.close()
