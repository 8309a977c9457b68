"""The broker and well-behaved jobs, without TensorFlow."""

from __future__ import annotations

import pytest
from broker_clients import BUDGET, MIB, Memory, RawClient, until
from light import BrokerProcess
from timelines import training_step

from tfswap.jobs.granted_share import GrantedShare
from tfswap.jobs.job import BrokerError, Job
from tfswap.jobs.job_trace import job_trace
from tfswap.jobs.share import Share
from tfswap.jobs.socket_path import make_private_folder
from tfswap.machine.machine import Machine


def test_jobs_share_the_device_and_return_their_shares(broker, join):
    memories = [Memory(), Memory()]
    first = join("first", memories[0])
    assert first.granted == GrantedShare(BUDGET, 1.0, "CPU:0", BUDGET, 1)
    second = join("second", memories[1])
    assert second.granted.budget_bytes == pytest.approx(BUDGET / 2, rel=0.01)
    assert first.granted.budget_bytes + second.granted.budget_bytes <= BUDGET
    assert second.granted.link_share == 0.5 and second.granted.jobs == 2
    second.leave()
    until(lambda: first.granted.budget_bytes == BUDGET)
    broker.wait_for("'second' (process")


def test_shares_do_not_change_within_a_step(broker, join):
    memory = Memory()
    first = join("first", memory)
    first.step_begins()
    second = Job(broker.socket, "second", Share(wait_s=0.5))
    with pytest.raises(BrokerError, match=r"'first' \(process \d+\) holds 1000 MiB"):
        second.join()
    assert memory.shares == []
    first.step_ended()
    first.step_ended()
    third = join("third")
    assert third.granted.budget_bytes + first.granted.budget_bytes <= BUDGET
    assert memory.shares


def test_weights_and_minima_of_the_broker_override_those_of_jobs(path, join):
    broker = BrokerProcess(
        path, BUDGET, "--divide", "weights", "--weight", "b=3", "--minimum", "c=300MiB"
    )
    a, b = join("a", weight=1), join("b", weight=1)
    until(lambda: a.granted.budget_bytes == pytest.approx(BUDGET / 4, rel=0.02))
    assert b.granted.budget_bytes == pytest.approx(BUDGET * 3 / 4, rel=0.02)
    c = join("c", weight=0.1)
    assert c.granted.budget_bytes >= 300 * MIB
    broker.end()


def test_a_job_declines_a_share_that_is_too_small(broker, join):
    memory = Memory(least_bytes=900 * MIB)
    first = join("first", memory)
    second = Job(broker.socket, "second", Share(minimum="200MiB", wait_s=1))
    with pytest.raises(BrokerError, match="this job needs at least 200 MiB"):
        second.join()
    broker.wait_for("needs at least 900 MiB")
    assert first.granted.budget_bytes == BUDGET
    third = join("third", minimum="50MiB")
    assert 50 * MIB <= third.granted.budget_bytes <= 100 * MIB


def test_known_steps_change_the_shares(broker, join):
    a, b = join("a"), join("b")
    until(lambda: a.granted.budget_bytes == pytest.approx(BUDGET / 2, rel=0.02))
    a.profiled(job_trace(training_step(blocks=2, layers=1), Machine("fast", 4e9, 4e9)))
    b.profiled(job_trace(training_step(), Machine("slow", 2e8, 2e8)))  # swapping slows it down most
    until(lambda: b.granted.budget_bytes > 0.6 * BUDGET, 20)
    assert a.granted.budget_bytes + b.granted.budget_bytes <= BUDGET


def test_a_missing_broker_is_an_error(path):
    with pytest.raises(BrokerError, match="does not exist"):
        Job(path, "a", Share()).join()
    make_private_folder(path.parent)
    with pytest.raises(BrokerError, match="start one with `tfswap broker --socket"):
        Job(path, "a", Share()).join()


def test_jobs_survive_their_broker_and_reconnect_to_the_next(path, join):
    notes: list[str] = []
    broker = BrokerProcess(path, BUDGET)
    a, b = join("a"), join("b")
    a._note = notes.append
    held = a.granted.budget_bytes, b.granted.budget_bytes
    broker.kill()
    until(lambda: not a.in_touch)
    until(lambda: notes)
    assert "keeps its current share" in notes[0]
    with pytest.raises(AssertionError, match="raise the budget, or end process"):
        BrokerProcess(path, BUDGET // 2)
    next_one = BrokerProcess(path, BUDGET)
    until(lambda: a.in_touch and b.in_touch, 15)
    assert (a.granted.budget_bytes, b.granted.budget_bytes) == held
    b.leave()
    until(lambda: a.granted.budget_bytes == BUDGET)
    assert len(notes) == 1
    next_one.end()
    assert a.granted.budget_bytes == BUDGET  # a broker that ends leaves the share


def test_the_next_broker_reserves_the_memory_of_disconnected_jobs(path, join):
    broker = BrokerProcess(path, BUDGET)
    client = RawClient(path)
    assert client.join()["budget_bytes"] == BUDGET
    broker.kill()
    next_one = BrokerProcess(path, BUDGET)
    assert "still holds 1000 MiB" in next_one.said
    with pytest.raises(BrokerError, match=r"holds 1000 MiB \(disconnected\)"):
        Job(path, "new", Share(wait_s=1)).join()
    client.close()
    assert join("newer").granted.budget_bytes == BUDGET
    next_one.end()
