"""The queue against a plain list, under every order of operations."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cel_jax.bus.errors import BoundReached
from cel_jax.bus.queue import ChannelQueue, ItemId, QueueLimits

LEASE_S = 10.0
BOUND = 12


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class QueueModel(RuleBasedStateMachine):
    """Model: one list in order of arrival; each entry is [id, key, claimant, lease end, arrival, expiry]."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.queue = ChannelQueue("observations", QueueLimits(items=BOUND), self.clock)
        self.model: list[list] = []
        self.steps = 0

    @rule(worker=st.sampled_from("abc"), key=st.sampled_from("kl"), lives_s=st.sampled_from([3.0, 30.0]))
    def put(self, worker, key, lives_s):
        self.steps += 1
        id, ends_s = ItemId(worker, "e", self.steps), self.clock.now_s + lives_s
        if len(self.model) == BOUND:
            with pytest.raises(BoundReached, match="observations"):
                self.queue.put(id, worker, key, id, 1, ends_s)
            return
        assert self.queue.put(id, worker, key, id, 1, ends_s) is None
        self.model.append([id, key, "", None, self.clock.now_s, ends_s])

    @rule(data=st.data())
    @precondition(lambda self: self.model)
    def put_again(self, data):
        entry = data.draw(st.sampled_from(self.model))
        entry[5] = self.clock.now_s + 30.0
        assert self.queue.put(entry[0], "x", entry[1], entry[0], 1, entry[5]) == entry[0]

    @rule(claimant=st.sampled_from("xy"), count=st.integers(1, 5), key=st.sampled_from([None, "k", "l"]))
    def take(self, claimant, count, key):
        wanted = [e for e in self.model if not e[2] and key in (None, e[1])][:count]
        taken = self.queue.take(claimant, count, LEASE_S, key)
        assert [item.id for item in taken] == [e[0] for e in wanted]
        for entry in wanted:
            entry[2], entry[3] = claimant, self.clock.now_s + LEASE_S

    @rule(step=st.integers(1, 40))
    def answer(self, step):
        found = [e for e in self.model if e[0].step == step]
        item = self.queue.answer(found[0][0] if found else ItemId("a", "e", step))
        assert (item.id if item else None) == (found[0][0] if found else None)
        self.model = [e for e in self.model if e not in found]

    @rule(seconds=st.sampled_from([0.5, 2.0, 4.0, 11.0]))
    def pass_time(self, seconds):
        self.clock.now_s += seconds
        for entry in self.model:
            if entry[2] and entry[3] <= self.clock.now_s:
                entry[2], entry[3] = "", None
        self.queue.end_leases()
        late = [e for e in self.model if not e[2] and e[5] <= self.clock.now_s]
        assert {item.id for item in self.queue.drop_expired()} == {e[0] for e in late}
        self.model = [e for e in self.model if e not in late]

    @rule(worker=st.sampled_from("abc"))
    def drop_worker(self, worker):
        gone = [e for e in self.model if e[0].worker == worker]
        assert {item.id for item in self.queue.drop_worker(worker)} == {e[0] for e in gone}
        self.model = [e for e in self.model if e not in gone]

    @rule(claimant=st.sampled_from("xy"))
    def release_claimant(self, claimant):
        held = [e for e in self.model if e[2] == claimant]
        assert self.queue.release_claimant(claimant) == len(held)
        for entry in held:
            entry[2], entry[3] = "", None

    @rule(claimant=st.sampled_from("xy"), data=st.data())
    @precondition(lambda self: self.model)
    def release(self, claimant, data):
        some = data.draw(st.lists(st.sampled_from(self.model), unique_by=lambda e: e[0]))
        held = [e for e in some if e[2] == claimant]
        assert self.queue.release([e[0] for e in some], claimant) == len(held)
        for entry in held:
            entry[2], entry[3] = "", None

    @invariant()
    def same_depths(self):
        stats = self.queue.stats()
        ready = [e for e in self.model if not e[2]]
        assert (stats["ready"], stats["claimed"]) == (len(ready), len(self.model) - len(ready))
        assert stats["size_bytes"] == len(self.model)
        assert stats["oldest_age_s"] == max((self.clock.now_s - e[4] for e in ready), default=0.0)

    @invariant()
    def same_due(self):
        ready = [e for e in self.model if not e[2]]
        is_old = bool(ready) and self.clock.now_s - min(e[4] for e in ready) >= 1.0
        assert self.queue.is_due(3, 1.0) == (len(ready) >= 3 or is_old)


TestQueueModel = QueueModel.TestCase
TestQueueModel.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)


def test_bytes_are_bounded():
    queue = ChannelQueue("c", QueueLimits(total_bytes=10), Clock())
    queue.put(ItemId("w", "e", 0), "s", "k", None, 8)
    with pytest.raises(BoundReached, match="10 bytes"):
        queue.put(ItemId("w", "e", 1), "s", "k", None, 3)
    queue.answer(ItemId("w", "e", 0))
    queue.put(ItemId("w", "e", 1), "s", "k", None, 3)
    assert queue.stats()["counts"] == {"put": 2, "refused": 1, "answered": 1}


def test_repeated_request_keeps_its_claim_and_takes_the_new_payload():
    queue = ChannelQueue("c", QueueLimits(), Clock())
    queue.put(ItemId("w", "e", 0), "s", "k", "old")
    assert len(queue.take("x", 1, LEASE_S)) == 1
    assert queue.put(ItemId("w", "e", 0), "s", "k", "new") == "old"
    assert queue.take("y", 1, LEASE_S) == []
    item = queue.answer(ItemId("w", "e", 0))
    assert item is not None and item.payload == "new"


def test_a_claimed_item_past_its_deadline_stays_until_its_lease_ends():
    clock = Clock()
    queue = ChannelQueue("c", QueueLimits(), clock)
    queue.put(ItemId("w", "e", 0), "s", "k", None, expires_s=clock.now_s + 1.0)
    queue.take("x", 1, LEASE_S)
    clock.now_s += 5.0
    assert queue.drop_expired() == [] and queue.stats()["claimed"] == 1
    clock.now_s += 5.0
    assert queue.end_leases() == 1 and len(queue.drop_expired()) == 1


def test_nobody_is_no_claimant():
    queue = ChannelQueue("c", QueueLimits(), lambda: 0.0)
    queue.put(ItemId("w", "e", 1), "robot-0", "k", "payload")
    assert queue.release_claimant("") == 0 and queue.release([ItemId("w", "e", 1)], "") == 0
    assert len(queue.take("gpu", 5, 1.0)) == 1, "a ready item stands once in its queue"
