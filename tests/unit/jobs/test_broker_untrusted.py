"""The broker and clients that send invalid or malicious messages."""

from __future__ import annotations

import time

import grpc
import pytest
from broker_clients import BUDGET, Memory, RawClient, until
from timelines import training_step

from tfswap.jobs.job_trace import MAGIC, job_trace
from tfswap.jobs.messages import encode
from tfswap.machine.machine import Machine


@pytest.mark.parametrize(
    ("hello", "why"),
    [
        (b"", "not JSON"),
        (b"\xff\x00", "not JSON"),
        (b"[" * 9000, "not JSON"),
        (b"[]", "not an object with a kind"),
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
        ({"weight": float("nan")}, "a message is not JSON"),
        ({"weight": 1e9}, "weight must be a number"),
        ({"name": "a\nb"}, "name must be a string"),
        ({"name": "x" * 81}, "name must be a string"),
        ({"lease": "../../etc/passwd"}, "lease must be a string"),
        ({"lease": "job-0123456789abcdef"}, "does not know the job's lease"),
        ({"more": 1}, "unknown field 'more'"),
    ],
)
def test_an_invalid_hello_is_refused(client, hello, why):
    client.send(hello if isinstance(hello, bytes) else client.hello(**hello))
    message = client.receive()
    assert message["kind"] == "refused" and why in message["why"]
    with pytest.raises((grpc.RpcError, StopIteration)):
        client.receive()


def test_a_job_that_does_not_lock_its_lease_is_refused(client):
    client.send(client.hello())
    assert client.receive()["kind"] == "welcome"
    client.send(encode("leased"))
    assert "no process holds it" in client.receive()["why"]


GOOD = job_trace(training_step(blocks=2, layers=1), Machine("link", 4e9, 4e9)).to_bytes()


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([encode("ack", serial=7, in_use_bytes=0)], "acknowledges grant 7, which it was never"),
        (
            [encode("ack", serial=1, in_use_bytes=BUDGET + 1)],
            "the job uses 1000 MiB, more than its share",
        ),
        ([encode("ack", serial=1, in_use_bytes=-5)], "in_use_bytes must be"),
        ([encode("decline", serial=1, least_bytes=1)], "declines grant 1, which takes nothing"),
        ([encode("hello")], "hello: version is missing"),
        ([encode("leased")], "unexpected message 'leased'"),
        ([MAGIC + b"rubbish"], "a trace cannot be decompressed"),
        ([GOOD[:-30]], "a trace"),
        ([GOOD] * 5, "too many messages"),
        ([encode("ack", serial=1, in_use_bytes=0)], ""),
    ],
)
def test_invalid_messages_are_refused_and_do_not_disturb_others(client, join, messages, why):
    memory = Memory()
    other = join("other", memory)
    share = client.join()
    assert share["budget_bytes"] + other.granted.budget_bytes <= BUDGET
    for data in messages:
        client.send(data)
    if not why:
        return
    assert why in client.receive_refusal()
    time.sleep(0.3)
    # The refused job still holds its lease, so its share stays reserved.
    assert other.granted.budget_bytes <= BUDGET - share["budget_bytes"]
    assert other.in_touch
    client.close()
    until(lambda: other.granted.budget_bytes == BUDGET)


def test_a_flood_of_messages_is_refused(client, join):
    other = join("other")
    client.join()
    for _ in range(100):
        client.send(encode("ack", serial=1, in_use_bytes=0))
    why = ""
    while not why:
        why = client.receive().get("why", "")
    assert "never sent" in why or "too many messages" in why
    assert other.in_touch


def test_a_message_that_is_too_large_ends_the_stream(client, join):
    other = join("other")
    client.join()
    client.send(bytes(3 << 20))
    with pytest.raises((grpc.RpcError, StopIteration)):
        while True:
            client.receive()
    assert other.in_touch
    client.close()
    until(lambda: other.granted.budget_bytes == BUDGET)


def test_no_job_can_take_over_the_lease_of_another(client, broker):
    client.join()
    lease, token = client.welcome["lease"], client.welcome["token"]
    for changes, why in (
        ({"token": "00" * 32}, "does not know the job's lease"),
        ({"token": token, "held_bytes": 5}, "which it was never granted"),
        ({"token": token, "held_bytes": BUDGET}, "never granted"),
    ):
        other = RawClient(broker.socket)
        other.send(other.hello(lease=lease, **changes))
        assert why in other.receive()["why"]
        other.close()


def test_releasing_the_lease_ends_the_share(client, join):
    client.join()
    client.lease.release()
    assert "released its lease" in client.receive_refusal()
    assert join("next").granted.budget_bytes == BUDGET
