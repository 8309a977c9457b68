"""The broker as jobs meet it, honest ones and others; no TensorFlow in any of it."""

from __future__ import annotations

import os
import queue
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from light import BrokerProcess, start
from timelines import training_step

from tfswap.jobs.job import BrokerError, GrantedShare, Job
from tfswap.jobs.job_trace import MAGIC, job_trace
from tfswap.jobs.lease import HeldLease
from tfswap.jobs.messages import FROM_BROKERS, METHOD, encode, parse
from tfswap.jobs.share import Share
from tfswap.jobs.socket_path import (
    SocketRefused,
    check_socket,
    default_path,
    leases_of,
    make_private_folder,
    parse_path,
)
from tfswap.machine.machine import Machine

MIB = 1 << 20
BUDGET = 1000 * MIB


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "broker.sock"


@pytest.fixture
def broker(path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(path, BUDGET)
    yield process
    process.end()


class Memory:
    """What a job holds: all that it may."""

    def __init__(self, least_bytes: int = 0) -> None:
        self.least_bytes = least_bytes
        self.held_bytes = 0
        self.shares: list[GrantedShare] = []

    def in_use_bytes(self) -> int:
        return self.held_bytes

    def change(self, share: GrantedShare) -> int | None:
        if share.budget_bytes < self.least_bytes:
            return self.least_bytes
        self.held_bytes = share.budget_bytes
        self.shares.append(share)
        return None


@pytest.fixture
def join(path: Path) -> Iterator[Any]:
    jobs: list[Job] = []

    def joined(name: str, memory: Memory | None = None, **share: Any) -> Job:
        job = Job(path, name, Share(**{"wait_s": 20, **share}))
        jobs.append(job)
        job.join()
        if memory is not None:
            memory.held_bytes = job.granted.budget_bytes
        job.hold(memory or Memory())
        return job

    yield joined
    for job in jobs:
        job.leave()


def until(holds: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Liar:
    """A job that says whatever it is told to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._channel = grpc.insecure_channel(f"unix:{path}")
        self._call = self._channel.stream_stream(METHOD)(iter(self._requests.get, None))
        self.lease: HeldLease | None = None

    def say(self, data: bytes) -> None:
        self._requests.put(data)

    def hear(self) -> dict[str, Any]:
        while (message := parse(next(self._call), FROM_BROKERS))["kind"] == "waiting":
            pass
        return message

    def hello(self, **changes: Any) -> bytes:
        fields = {
            "version": 1,
            "name": "liar",
            "device": "CPU",
            "weight": 1,
            "minimum_bytes": 0,
            "wanted_bytes": 0,
            "lease": "",
            "token": "",
            "held_bytes": 0,
        }
        return encode("hello", **{**fields, **changes})

    def join(self) -> dict[str, Any]:
        """As an honest job does; answers the first share."""
        self.say(self.hello())
        welcome = self.hear()
        self.lease = HeldLease(leases_of(self.path) / welcome["lease"])
        self.welcome = welcome
        self.say(encode("leased"))
        return self.hear()

    def close(self) -> None:
        if self.lease is not None:
            self.lease.release()
        self._requests.put(None)
        self._channel.close()


@pytest.fixture
def liar(broker: BrokerProcess) -> Iterator[Liar]:
    made = Liar(broker.socket)
    yield made
    made.close()


# The socket.


def test_only_its_user_can_reach_a_broker(broker, path):
    assert stat.S_IMODE(os.stat(path.parent).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(leases_of(path)).st_mode) == 0o700
    check_socket(path)
    os.chmod(path, 0o666)
    with pytest.raises(SocketRefused, match=r"the socket .* is open to others \(mode 0666\)"):
        check_socket(path)
    os.chmod(path, 0o600)


def test_a_folder_that_is_open_to_others_is_refused(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    os.chmod(shared, 0o755)
    with pytest.raises(SocketRefused, match=r"is open to others \(mode 0755\).*tfswap/broker.sock"):
        make_private_folder(shared)
    (tmp_path / "file").touch()
    with pytest.raises(SocketRefused, match="is no folder"):
        make_private_folder(tmp_path / "file")


def test_what_belongs_to_another_user_is_refused(path, monkeypatch):
    make_private_folder(path.parent)
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    os.chmod(path, 0o600)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(SocketRefused, match="belongs to user .* and this process to 12345"):
        check_socket(path)
    server.close()


def test_where_sockets_may_be(path, monkeypatch, tmp_path):
    assert parse_path(f"unix:{path}") == parse_path(path) == path
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert parse_path(True) == default_path() == tmp_path / "tfswap" / "broker.sock"
    for wrong in ("", False, 3, "a\0b"):
        with pytest.raises(ValueError, match="broker is .* it must be the path"):
            parse_path(wrong)
    with pytest.raises(ValueError, match="at most 107 bytes"):
        parse_path("/tmp/" + "x" * 200)


def test_there_is_one_broker_on_a_socket(broker, path):
    second = start(
        "import asyncio; from pathlib import Path; from tfswap.jobs.broker import Broker\n"
        "asyncio.run(Broker('CPU:0', 1, Path(sys.argv[1])).start())",
        str(path),
        stderr=subprocess.PIPE,
    )
    assert "there is a broker at" in second.communicate(timeout=20)[1]
    check_socket(path)


def test_a_socket_that_a_dead_broker_left_is_taken_over(path, join):
    first = BrokerProcess(path, BUDGET)
    first.kill()
    assert path.exists()
    second = BrokerProcess(path, BUDGET)
    assert join("a").granted.budget_bytes == BUDGET
    second.end()
    assert not path.exists()


# Honest jobs.


def test_jobs_share_and_give_back(broker, join):
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


def test_nothing_changes_in_a_step(broker, join):
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


def test_weights_and_minima_of_jobs_and_of_the_broker(path, join):
    broker = BrokerProcess(
        path, BUDGET, "--divide", "weights", "--weight", "b=3", "--minimum", "c=300MiB"
    )
    a, b = join("a", weight=1), join("b", weight=1)
    until(lambda: a.granted.budget_bytes == pytest.approx(BUDGET / 4, rel=0.02))
    assert b.granted.budget_bytes == pytest.approx(BUDGET * 3 / 4, rel=0.02)
    c = join("c", weight=0.1)
    assert c.granted.budget_bytes >= 300 * MIB
    broker.end()


def test_a_job_says_what_it_cannot_do_with(broker, join):
    memory = Memory(least_bytes=900 * MIB)
    first = join("first", memory)
    second = Job(broker.socket, "second", Share(minimum="200MiB", wait_s=1))
    with pytest.raises(BrokerError, match="this job needs 200 MiB at least"):
        second.join()
    broker.wait_for("cannot do with less than 900 MiB")
    assert first.granted.budget_bytes == BUDGET
    third = join("third", minimum="50MiB")
    assert 50 * MIB <= third.granted.budget_bytes <= 100 * MIB


def test_steps_that_are_known_move_shares(broker, join):
    a, b = join("a"), join("b")
    until(lambda: a.granted.budget_bytes == pytest.approx(BUDGET / 2, rel=0.02))
    a.profiled(job_trace(training_step(blocks=2, layers=1), Machine("fast", 4e9, 4e9)))
    b.profiled(job_trace(training_step(), Machine("slow", 2e8, 2e8)))  # loses most by swaps
    until(lambda: b.granted.budget_bytes > 0.6 * BUDGET, 20)
    assert a.granted.budget_bytes + b.granted.budget_bytes <= BUDGET


def test_without_a_broker_there_is_a_clear_error(path):
    with pytest.raises(BrokerError, match="is not there"):
        Job(path, "a", Share()).join()
    make_private_folder(path.parent)
    with pytest.raises(BrokerError, match="start one with `tfswap broker --socket"):
        Job(path, "a", Share()).join()


def test_jobs_outlive_their_broker_and_find_the_next_one(path, join):
    notes: list[str] = []
    broker = BrokerProcess(path, BUDGET)
    a, b = join("a"), join("b")
    a._note = notes.append
    held = a.granted.budget_bytes, b.granted.budget_bytes
    broker.kill()
    until(lambda: not a.in_touch)
    until(lambda: notes)
    assert "goes on with what it has" in notes[0]
    with pytest.raises(AssertionError, match="give that much, or end process"):
        BrokerProcess(path, BUDGET // 2)
    next_one = BrokerProcess(path, BUDGET)
    until(lambda: a.in_touch and b.in_touch, 15)
    assert (a.granted.budget_bytes, b.granted.budget_bytes) == held
    b.leave()
    until(lambda: a.granted.budget_bytes == BUDGET)
    assert len(notes) == 1
    next_one.end()
    assert a.granted.budget_bytes == BUDGET  # a broker that is ended leaves it, too


def test_the_next_broker_counts_what_jobs_hold_that_have_not_come_back(path, join):
    broker = BrokerProcess(path, BUDGET)
    liar = Liar(path)
    assert liar.join()["budget_bytes"] == BUDGET
    broker.kill()
    next_one = BrokerProcess(path, BUDGET)
    assert "still holds 1000 MiB" in next_one.said
    with pytest.raises(BrokerError, match="holds 1000 MiB and is out of touch"):
        Job(path, "new", Share(wait_s=1)).join()
    liar.close()
    assert join("newer").granted.budget_bytes == BUDGET
    next_one.end()


# Others.


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"", "no JSON"),
        (b"\xff\x00", "no JSON"),
        (b"[" * 9000, "no JSON"),
        (b"[]", "no object with a kind"),
        (b'{"kind": "steal"}', "unknown kind 'steal'"),
        (b'{"kind": "leased"}', "the first message must be a hello"),
        (b'{"kind": "hello"}', "hello: version is missing"),
        (b" " * 20000, "larger than"),
        ({"version": 2}, "the broker speaks version 1, the job 2"),
        ({"device": "GPU"}, "the job trains on a GPU; the broker has CPU:0"),
        ({"minimum_bytes": -1}, "minimum_bytes must be an integer from 0"),
        ({"minimum_bytes": True}, "minimum_bytes must be an integer"),
        ({"minimum_bytes": BUDGET + 1}, "is more than the whole budget of 1000 MiB"),
        ({"weight": 0}, "weight must be a number above 0, at most 1000"),
        ({"weight": float("nan")}, "a message that is no JSON"),
        ({"weight": 1e9}, "weight must be a number"),
        ({"name": "a\nb"}, "name must be a text"),
        ({"name": "x" * 81}, "name must be a text"),
        ({"lease": "../../etc/passwd"}, "lease must be a text"),
        ({"lease": "job-0123456789abcdef"}, "does not know the job's lease"),
        ({"more": 1}, "unknown field 'more'"),
    ],
)
def test_a_hello_that_cannot_be_is_refused(liar, broker, said, why):
    liar.say(said if isinstance(said, bytes) else liar.hello(**said))
    message = liar.hear()
    assert message["kind"] == "refused" and why in message["why"]
    with pytest.raises((grpc.RpcError, StopIteration)):
        liar.hear()


def test_a_lease_that_nobody_holds_is_no_lease(liar):
    liar.say(liar.hello())
    assert liar.hear()["kind"] == "welcome"
    liar.say(encode("leased"))
    assert "nobody has" in liar.hear()["why"]


GOOD = job_trace(training_step(blocks=2, layers=1), Machine("link", 4e9, 4e9)).to_bytes()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ([encode("ack", serial=7, in_use_bytes=0)], "acknowledges grant 7, which it was never"),
        ([encode("ack", serial=1, in_use_bytes=BUDGET + 1)], "the job holds 1000 MiB, and was"),
        ([encode("ack", serial=1, in_use_bytes=-5)], "in_use_bytes must be"),
        ([encode("decline", serial=1, least_bytes=1)], "declines grant 1, which takes nothing"),
        ([encode("hello")], "hello: version is missing"),
        ([encode("leased")], "a leased that nobody asked for"),
        ([MAGIC + b"rubbish"], "a trace that cannot be unpacked"),
        ([GOOD[:-30]], "a trace"),
        ([GOOD] * 5, "too many messages"),
        ([encode("ack", serial=1, in_use_bytes=0)], ""),
    ],
)
def test_a_job_that_lies_is_refused_and_others_are_not_disturbed(liar, broker, join, said, why):
    memory = Memory()
    honest = join("honest", memory)
    share = liar.join()
    assert share["budget_bytes"] + honest.granted.budget_bytes <= BUDGET
    for data in said:
        liar.say(data)
    if not why:
        return
    message = liar.hear()
    while message["kind"] == "share":
        message = liar.hear()
    assert why in message["why"]
    time.sleep(0.3)
    # It still holds the lease, so what it was granted stays its own.
    assert honest.granted.budget_bytes <= BUDGET - share["budget_bytes"]
    assert honest.in_touch
    liar.close()
    until(lambda: honest.granted.budget_bytes == BUDGET)


def test_a_flood_of_messages_is_refused(liar, broker, join):
    honest = join("honest")
    liar.join()
    for _ in range(100):
        liar.say(encode("ack", serial=1, in_use_bytes=0))
    why = ""
    while not why:
        why = liar.hear().get("why", "")
    assert "never sent" in why or "too many messages" in why
    assert honest.in_touch


def test_more_bytes_than_a_message_may_have_end_the_stream(liar, broker, join):
    honest = join("honest")
    liar.join()
    liar.say(bytes(3 << 20))
    with pytest.raises((grpc.RpcError, StopIteration)):
        while True:
            liar.hear()
    assert honest.in_touch
    liar.close()
    until(lambda: honest.granted.budget_bytes == BUDGET)


def test_nobody_takes_over_the_lease_of_another(liar, broker):
    liar.join()
    lease, token = liar.welcome["lease"], liar.welcome["token"]
    for changes, why in (
        ({"token": "00" * 32}, "does not know the job's lease"),
        ({"token": token, "held_bytes": 5}, "which it was never granted"),
        ({"token": token, "held_bytes": BUDGET}, "never granted"),
    ):
        other = Liar(broker.socket)
        other.say(other.hello(lease=lease, **changes))
        assert why in other.hear()["why"]
        other.close()


def test_a_lease_that_is_given_up_ends_the_share(liar, broker, join):
    liar.join()
    liar.lease.release()
    message = liar.hear()
    while message["kind"] == "share":
        message = liar.hear()
    assert "given its lease up" in message["why"]
    assert join("next").granted.budget_bytes == BUDGET
