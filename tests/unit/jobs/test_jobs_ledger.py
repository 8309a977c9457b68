from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tfswap.jobs.ledger import Ledger, LedgerError

CAPACITY = 100


def settled(ledger: Ledger) -> None:
    """Has each job acknowledge all that it is sent, until there is nothing more to send."""
    while grants := ledger.due():
        for grant in grants:
            ledger.acknowledge(grant.job, grant.serial)


def test_one_that_grows_waits_until_the_other_has_shrunk() -> None:
    ledger = Ledger(CAPACITY)
    ledger.open("a")
    ledger.aim({"a": 100}, {})
    (first,) = ledger.due()
    assert (first.job, first.budget_bytes) == ("a", 100)
    ledger.acknowledge("a", first.serial)
    ledger.open("b")
    ledger.aim({"a": 40, "b": 60}, {"a": 0.5, "b": 0.5})
    (shrinks,) = ledger.due()
    assert (shrinks.job, shrinks.budget_bytes, shrinks.link_share) == ("a", 40, 0.5)
    assert ledger.due() == [] and ledger.free_bytes == 0 and ledger.is_short("b")
    ledger.acknowledge("a", shrinks.serial)
    (grows,) = ledger.due()
    assert (grows.job, grows.budget_bytes) == ("b", 60)
    assert ledger.free_bytes == 0  # it counts from the moment it is sent


def test_who_is_impatient_gets_what_there_is() -> None:
    ledger = Ledger(CAPACITY)
    for job in "abc":
        ledger.open(job)
    ledger.aim({"a": 50, "b": 50}, {})
    settled(ledger)
    ledger.aim({"a": 30, "b": 30, "c": 40}, {})
    grants = {grant.job: grant for grant in ledger.due()}
    assert set(grants) == {"a", "b"}
    ledger.acknowledge("a", grants["a"].serial)
    assert ledger.due() == []
    assert ledger.due({"c": 21}) == []  # less than it begins with
    assert [grant.budget_bytes for grant in ledger.due({"c": 20})] == [20]
    assert ledger.due({"c": 20}) == []
    ledger.acknowledge("b", grants["b"].serial)
    assert [grant.budget_bytes for grant in ledger.due()] == [40]


def test_who_is_out_of_touch_keeps_what_it_may_hold() -> None:
    ledger = Ledger(CAPACITY)
    ledger.open("a")
    ledger.aim({"a": 80}, {})
    settled(ledger)
    ledger.aim({"a": 20}, {})
    ledger.due()
    ledger.lose_touch("a")
    ledger.open("b")
    assert ledger.free_bytes == 20
    with pytest.raises(LedgerError, match="beyond 100"):
        ledger.aim({"b": 30}, {})
    with pytest.raises(LedgerError, match="never granted"):
        ledger.resume("a", 10)
    ledger.resume("a", 20)
    assert ledger.free_bytes == 80
    with pytest.raises(LedgerError, match="in touch already"):
        ledger.resume("a", 20)


def test_declined_shares_stay_as_they_were() -> None:
    ledger = Ledger(CAPACITY)
    ledger.open("a")
    ledger.aim({"a": 100}, {})
    settled(ledger)
    ledger.aim({"a": 10}, {})
    (grant,) = ledger.due()
    ledger.decline("a", grant.serial)
    assert ledger.held_bytes("a") == ledger.granted_bytes("a") == 100
    assert ledger.due() == []
    with pytest.raises(LedgerError, match="never sent"):
        ledger.decline("a", grant.serial)


def test_what_cannot_be_is_refused() -> None:
    ledger = Ledger(CAPACITY)
    ledger.open("a")
    with pytest.raises(LedgerError, match="already"):
        ledger.open("a")
    with pytest.raises(LedgerError, match="no job 'b'"):
        ledger.held_bytes("b")
    with pytest.raises(LedgerError, match="acknowledges grant 1, which it was never sent"):
        ledger.acknowledge("a", 1)
    with pytest.raises(LedgerError, match="cannot have -1 bytes"):
        ledger.aim({"a": -1}, {})
    with pytest.raises(LedgerError, match="may hold 101 bytes"):
        ledger.adopt("c", 101)
    with pytest.raises(ValueError, match="nothing to give out"):
        Ledger(0)


class Jobs(RuleBasedStateMachine):
    """Jobs that join, leave, die, answer late or never, and what each of them really holds."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(CAPACITY)
        self.number = 0
        self.really: dict[str, int] = {}  # what its process has in force
        self.inbox: dict[str, list[tuple[int, int]]] = {}

    def job(self, data: st.DataObject, in_touch: bool) -> str | None:
        jobs = [job for job in self.ledger.jobs if self.ledger.is_in_touch(job) == in_touch]
        return data.draw(st.sampled_from(jobs)) if jobs else None

    @rule()
    def join(self) -> None:
        self.number += 1
        self.ledger.open(f"job {self.number}")
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
            self.ledger.aim(targets, {job: 0.5 for job in targets})
        except LedgerError:
            assert sum(targets.values()) + sum(map(self.ledger.held_bytes, self.ledger.jobs)) > (
                CAPACITY
            )

    @rule(impatient=st.booleans())
    def send(self, impatient: bool) -> None:
        partial = {job: 1 for job in self.ledger.jobs} if impatient else None
        for grant in self.ledger.due(partial):
            self.inbox[grant.job].append((grant.serial, grant.budget_bytes))

    @rule(data=st.data(), skips=st.booleans(), declines=st.booleans())
    def answer(self, data: st.DataObject, skips: bool, declines: bool) -> None:
        job = self.job(data, in_touch=True)
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

    @rule(data=st.data(), heard=st.booleans())
    def lose_touch(self, data: st.DataObject, heard: bool) -> None:
        job = self.job(data, in_touch=True)
        if job is None:
            return
        if heard and self.inbox[job]:  # put in force, and the answer was lost
            self.really[job] = self.inbox[job][0][1]
        self.inbox[job] = []
        self.ledger.lose_touch(job)

    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        job = self.job(data, in_touch=False)
        if job is not None:
            self.ledger.resume(job, self.really[job])

    @rule(data=st.data(), in_touch=st.booleans())
    def die(self, data: st.DataObject, in_touch: bool) -> None:
        job = self.job(data, in_touch)
        if job is not None:
            self.ledger.close(job)
            del self.really[job], self.inbox[job]

    @rule()
    def new_broker(self) -> None:
        """It knows what the leases say, and that nobody is in touch."""
        before, self.ledger = self.ledger, Ledger(CAPACITY)
        for job in before.jobs:
            self.ledger.adopt(job, before.held_bytes(job))
            if self.inbox[job]:
                self.inbox[job] = []
        for job in before.jobs:
            if before.held_bytes(job) != self.really[job]:
                self.ledger.close(job)  # it is refused, and ends
                del self.really[job], self.inbox[job]

    @invariant()
    def the_device_has_room_for_what_is_really_held(self) -> None:
        self.ledger.check(self.really)
        assert sum(self.really.values()) <= CAPACITY
        for job, held in self.really.items():
            assert held <= self.ledger.held_bytes(job)

    def teardown(self) -> None:
        for job in self.ledger.jobs:
            self.ledger.close(job)
        assert self.ledger.free_bytes == CAPACITY


Jobs.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestJobs = Jobs.TestCase
