"""Clients for tests of the broker: the memory of a job, and a client that sends any message."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from tfswap.jobs.granted_share import GrantedShare
from tfswap.jobs.lease import HeldLease
from tfswap.jobs.messages import FROM_BROKERS, METHOD, encode, parse
from tfswap.jobs.socket_path import leases_of

MIB = 1 << 20
BUDGET = 1000 * MIB


class Memory:
    """Holdings of a job that always uses its whole share.

    Args:
        least_bytes: It declines smaller shares.
    """

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


class RawClient:
    """A client that can send any message, also wrong ones."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._channel = grpc.insecure_channel(f"unix:{path}")
        self._call = self._channel.stream_stream(METHOD)(iter(self._requests.get, None))
        self.lease: HeldLease | None = None

    def send(self, data: bytes) -> None:
        self._requests.put(data)

    def receive(self) -> dict[str, Any]:
        """Return the next message that is not "waiting"."""
        while (message := parse(next(self._call), FROM_BROKERS))["kind"] == "waiting":
            pass
        return message

    def receive_refusal(self) -> str:
        """Return the reason of a refusal, after any shares."""
        while (message := self.receive())["kind"] == "share":
            pass
        assert message["kind"] == "refused"
        return str(message["why"])

    def hello(self, **changes: Any) -> bytes:
        fields = {
            "version": 1,
            "name": "client",
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
        """Join correctly, and return the first share."""
        self.send(self.hello())
        welcome = self.receive()
        self.lease = HeldLease(leases_of(self.path) / welcome["lease"])
        self.welcome = welcome
        self.send(encode("leased"))
        return self.receive()

    def close(self) -> None:
        if self.lease is not None:
            self.lease.release()
        self._requests.put(None)
        self._channel.close()


def until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
