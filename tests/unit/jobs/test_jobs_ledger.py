from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tfswap.jobs.ledger import Ledger, LedgerError

CAPACITY = 100


def settle(ledger: Ledger) -> None:
    """Acknowledge all grants, until none is due."""
    while grants := ledger.take_due():
        for grant in grants:
            ledger.acknowledge(grant.job, grant.serial)


def test_a_growing_job_waits_until_another_has_shrunk() -> None:
    ledger = Ledger(CAPACITY)
    ledger.add("a")
    ledger.set_targets({"a": 100}, {})
    (first,) = ledger.take_due()
    assert (first.job, first.budget_bytes) == ("a", 100)
    ledger.acknowledge("a", first.serial)
    ledger.add("b")
    ledger.set_targets({"a": 40, "b": 60}, {"a": 0.5, "b": 0.5})
    (shrinks,) = ledger.take_due()
    assert (shrinks.job, shrinks.budget_bytes, shrinks.link_share) == ("a", 40, 0.5)
    assert ledger.take_due() == [] and ledger.free_bytes == 0 and ledger.is_short("b")
    ledger.acknowledge("a", shrinks.serial)
    (grows,) = ledger.take_due()
    assert (grows.job, grows.budget_bytes) == ("b", 60)
    assert ledger.free_bytes == 0  # a larger grant counts as soon as it is sent


def test_a_job_can_get_a_part_of_its_target() -> None:
    ledger = Ledger(CAPACITY)
    for job in "abc":
        ledger.add(job)
    ledger.set_targets({"a": 50, "b": 50}, {})
    settle(ledger)
    ledger.set_targets({"a": 30, "b": 30, "c": 40}, {})
    grants = {grant.job: grant for grant in ledger.take_due()}
    assert set(grants) == {"a", "b"}
    ledger.acknowledge("a", grants["a"].serial)
    assert ledger.take_due() == []
    assert ledger.take_due({"c": 21}) == []  # less than its minimum
    assert [grant.budget_bytes for grant in ledger.take_due({"c": 20})] == [20]
    assert ledger.take_due({"c": 20}) == []
    ledger.acknowledge("b", grants["b"].serial)
    assert [grant.budget_bytes for grant in ledger.take_due()] == [40]


def test_a_disconnected_job_keeps_its_memory() -> None:
    ledger = Ledger(CAPACITY)
    ledger.add("a")
    ledger.set_targets({"a": 80}, {})
    settle(ledger)
    ledger.set_targets({"a": 20}, {})
    ledger.take_due()
    ledger.disconnect("a")
    ledger.add("b")
    assert ledger.free_bytes == 20
    with pytest.raises(LedgerError, match="exceed the capacity of 100"):
        ledger.set_targets({"b": 30}, {})
    with pytest.raises(LedgerError, match="never granted"):
        ledger.reconnect("a", 10)
    ledger.reconnect("a", 20)
    assert ledger.free_bytes == 80
    with pytest.raises(LedgerError, match="connected already"):
        ledger.reconnect("a", 20)


def test_a_declined_grant_keeps_the_share() -> None:
    ledger = Ledger(CAPACITY)
    ledger.add("a")
    ledger.set_targets({"a": 100}, {})
    settle(ledger)
    ledger.set_targets({"a": 10}, {})
    (grant,) = ledger.take_due()
    ledger.decline("a", grant.serial)
    assert ledger.held_bytes("a") == ledger.granted_bytes("a") == 100
    assert ledger.take_due() == []
    with pytest.raises(LedgerError, match="never sent"):
        ledger.decline("a", grant.serial)


def test_invalid_operations_are_errors() -> None:
    ledger = Ledger(CAPACITY)
    ledger.add("a")
    with pytest.raises(LedgerError, match="exists already"):
        ledger.add("a")
    with pytest.raises(LedgerError, match="no job 'b'"):
        ledger.held_bytes("b")
    with pytest.raises(LedgerError, match="acknowledges grant 1, which it was never sent"):
        ledger.acknowledge("a", 1)
    with pytest.raises(LedgerError, match="cannot have -1 bytes"):
        ledger.set_targets({"a": -1}, {})
    with pytest.raises(LedgerError, match="may hold 101 bytes"):
        ledger.adopt("c", 101)
    with pytest.raises(ValueError, match="must be above 0 bytes"):
        Ledger(0)


class Jobs(RuleBasedStateMachine):
    """Jobs that join, leave, die, answer late or never, and the memory that each really uses."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(CAPACITY)
        self.number = 0
        self.really: dict[str, int] = {}  # the share that its process has installed
        self.inbox: dict[str, list[tuple[int, int]]] = {}

    def job(self, data: st.DataObject, connected: bool) -> str | None:
        jobs = [job for job in self.ledger.jobs if self.ledger.is_connected(job) == connected]
        return data.draw(st.sampled_from(jobs)) if jobs else None

    @rule()
    def join(self) -> None:
        self.number += 1
        self.ledger.add(f"job {self.number}")
        self.really[f"job {self.number}"] = 0
        self.inbox[f"job {self.number}"] = []

    @rule(data=st.data())
    def aim(self, data: st.DataObject) -> None:
        targets = {
            job: data.draw(st.integers(0, CAPACITY))
            for job in self.ledger.jobs
            if data.draw(st.booleans())
        }
        try:
            self.ledger.set_targets(targets, {job: 0.5 for job in targets})
        except LedgerError:
            assert sum(targets.values()) + sum(map(self.ledger.held_bytes, self.ledger.jobs)) > (
                CAPACITY
            )

    @rule(partially=st.booleans())
    def send(self, partially: bool) -> None:
        partial = {job: 1 for job in self.ledger.jobs} if partially else None
        for grant in self.ledger.take_due(partial):
            self.inbox[grant.job].append((grant.serial, grant.budget_bytes))

    @rule(data=st.data(), skips=st.booleans(), declines=st.booleans())
    def answer(self, data: st.DataObject, skips: bool, declines: bool) -> None:
        job = self.job(data, connected=True)
        if job is None or not self.inbox[job]:
            return
        inbox = self.inbox[job]
        serial, budget = inbox[-1] if skips else inbox[0]
        del inbox[: len(inbox) if skips else 1]
        if declines and budget < self.really[job]:
            self.ledger.decline(job, serial)
        else:
            self.really[job] = budget
            self.ledger.acknowledge(job, serial)

    @rule(data=st.data(), installs=st.booleans())
    def disconnect(self, data: st.DataObject, installs: bool) -> None:
        job = self.job(data, connected=True)
        if job is None:
            return
        if installs and self.inbox[job]:  # installed, but the answer is lost
            self.really[job] = self.inbox[job][0][1]
        self.inbox[job] = []
        self.ledger.disconnect(job)

    @rule(data=st.data())
    def reconnect(self, data: st.DataObject) -> None:
        job = self.job(data, connected=False)
        if job is not None:
            self.ledger.reconnect(job, self.really[job])

    @rule(data=st.data(), connected=st.booleans())
    def die(self, data: st.DataObject, connected: bool) -> None:
        job = self.job(data, connected)
        if job is not None:
            self.ledger.remove(job)
            del self.really[job], self.inbox[job]

    @rule()
    def new_broker(self) -> None:
        """A new broker knows the leases only, and no job is connected."""
        before, self.ledger = self.ledger, Ledger(CAPACITY)
        for job in before.jobs:
            self.ledger.adopt(job, before.held_bytes(job))
            if self.inbox[job]:
                self.inbox[job] = []
        for job in before.jobs:
            if before.held_bytes(job) != self.really[job]:
                self.ledger.remove(job)  # it is refused and ends
                del self.really[job], self.inbox[job]

    @invariant()
    def the_used_memory_is_within_the_capacity(self) -> None:
        self.ledger.check_invariants(self.really)
        assert sum(self.really.values()) <= CAPACITY
        for job, held in self.really.items():
            assert held <= self.ledger.held_bytes(job)

    def teardown(self) -> None:
        for job in self.ledger.jobs:
            self.ledger.remove(job)
        assert self.ledger.free_bytes == CAPACITY


Jobs.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestJobs = Jobs.TestCase
