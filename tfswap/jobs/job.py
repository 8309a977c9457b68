"""Job: a process's part of a device that a broker divides.

A thread listens to the broker. A new share is put in force between steps: by that thread where no
step runs, else by the one that trains, when its step has ended; only then, within it, does the job
say so. If the broker dies the job goes on with what it has, and looks for a broker again.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tfswap.jobs.grpc_library import CHANNEL_OPTIONS, load_grpc
from tfswap.jobs.job_trace import JobTrace
from tfswap.jobs.lease import HeldLease
from tfswap.jobs.messages import (
    FROM_BROKERS,
    METHOD,
    VERSION,
    BadMessage,
    Message,
    clean_name,
    encode,
    parse,
)
from tfswap.jobs.share import Share
from tfswap.jobs.socket_path import SocketRefused, check_socket, leases_of

# Between looks for a broker that is gone: at first, and at most.
_SOON_S, _LATEST_S = 0.1, 5.0
# A job that waits longer for its first share says so.
_UNTOLD_S = 2.0


class BrokerError(RuntimeError):
    """There is no broker, or no share of it; the text says why, and what to do."""


@dataclass(frozen=True)
class GrantedShare:
    """What a job has.

    Attributes:
        budget_bytes: the most that it may hold.
        link_share: the part of the link's speed that its copies have beside those of others.
        device: what the broker calls the device.
        device_bytes: what it has for all jobs.
        jobs: how many there are, this one included.
    """

    budget_bytes: int
    link_share: float
    device: str
    device_bytes: int
    jobs: int


@dataclass(frozen=True)
class _Sent:
    """A share that came over a stream, which hears the answer, and no other one."""

    serial: int
    share: GrantedShare
    requests: queue.SimpleQueue[bytes | None]

    def answer(self, data: bytes) -> None:
        self.requests.put(data)


class Holdings(Protocol):
    """What a job holds of the device, between its steps."""

    def in_use_bytes(self) -> int:
        """What it holds now."""

    def change(self, share: GrantedShare) -> int | None:
        """Puts a share in force.

        Returns:
            None: it is, and nothing beyond it is held. Else the least that the job can do with;
            what was in force is again.
        """


class Job:
    """A job, from `join` to `leave`.

    Args:
        socket: Where the broker listens.
        name: By which the broker speaks of it.
        share: What it asks for.
        wanted_bytes: The most that it has a use for; 0: all of the device.
        device: "CPU" or "GPU".
        note: Called with a line when something happens that a user should know.

    Raises:
        ImportError: There is no gRPC.
    """

    def __init__(
        self,
        socket: Path,
        name: str,
        share: Share,
        wanted_bytes: int = 0,
        device: str = "CPU",
        note: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._grpc = load_grpc()
        self.socket = socket
        self._name = clean_name(name)
        self._share = share
        self._wanted_bytes = wanted_bytes
        self._device = device
        self._note = note
        self._minimum_bytes = share.minimum_bytes
        self._holdings: Holdings | None = None
        self._trace: JobTrace | None = None
        self._lease: HeldLease | None = None
        self._welcome: Message | None = None
        self._requests: queue.SimpleQueue[bytes | None] | None = None
        self._call: Any = None
        self._changed = threading.Condition()  # what is below, too
        self._granted: GrantedShare | None = None
        self._pending: _Sent | None = None
        self._in_step = False
        self._is_applying = False
        self._leaving = False
        self._problem = ""
        self._waits_because = ""
        self._in_touch = False
        self._thread: threading.Thread | None = None

    # The beginning and the end.

    def join(self, in_use_bytes: int = 0) -> GrantedShare:
        """Waits for the first share.

        Args:
            in_use_bytes: What it holds already; it needs that at the least.

        Raises:
            BrokerError: There is no broker, it refused the job, or there was no room in time.
        """
        try:
            check_socket(self.socket)
        except SocketRefused as error:
            raise BrokerError(f"tfswap: {error}") from None
        self._minimum_bytes = max(self._minimum_bytes, in_use_bytes)
        self._thread = threading.Thread(target=self._keep_in_touch, name="tfswap-job", daemon=True)
        self._thread.start()
        wait_s = self._share.wait_s
        self._wait_for_share(min(wait_s, _UNTOLD_S))
        if wait_s > _UNTOLD_S and self._granted is None and not self._problem:
            self._note(f"waiting for a share of the device: {self._waits_because or 'no answer'}")
            self._wait_for_share(wait_s - _UNTOLD_S)
        granted, problem, why = self._granted, self._problem, self._waits_because
        if granted is not None:
            return granted
        self.leave()
        if problem:
            raise BrokerError(f"tfswap: the broker at {self.socket} refused this job: {problem}")
        raise BrokerError(
            f"tfswap: the broker at {self.socket} had no share for this job within {wait_s:g} s"
            + (f": {why}" if why else "")
            + ". End one of those, ask for less (budget=, share=tfswap.Share(minimum=...)), or "
            "wait longer (share=tfswap.Share(wait_s=...))"
        )

    def _wait_for_share(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._granted or self._problem, seconds)

    def hold(self, holdings: Holdings) -> None:
        """Says by what shares are put in force; those that came meanwhile are, now."""
        with self._changed:
            self._holdings = holdings
        self._settle()

    def leave(self) -> None:
        """Gives the share back; harmless when called again. Nothing is in force by it then."""
        with self._changed:
            if self._leaving:
                return
            self._leaving = True
            self._pending = None
            requests = self._requests
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._is_applying, 10.0)
        # First: a broker that hears of the end looks whether the lease is free.
        if self._lease is not None:
            self._lease.release()
        if requests is not None:
            requests.put(encode("leave"))
            requests.put(None)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(1.0)
            if thread.is_alive() and self._call is not None:
                self._call.cancel()

    # What is known.

    @property
    def granted(self) -> GrantedShare | None:
        """What it has now; None: it has not joined yet."""
        return self._granted

    @property
    def in_touch(self) -> bool:
        """Whether the broker hears it."""
        return self._in_touch

    # Steps.

    def step_begins(self) -> None:
        """From now on nothing is changed; waits for what is being changed."""
        self._settle()
        with self._changed:
            self._changed.wait_for(lambda: not self._is_applying)
            self._in_step = True

    def step_ended(self) -> None:
        """Shares may change again; one that came in the step is put in force. May be repeated."""
        with self._changed:
            if not self._in_step:
                return
            self._in_step = False
        self._settle()

    def profiled(self, trace: JobTrace) -> None:
        """Report a profiled step to the broker."""
        self._trace = trace
        self._say(trace.to_bytes())

    def _settle(self) -> None:
        """Puts the last share that came in force, if no step runs."""
        while True:
            with self._changed:
                if self._is_applying or self._leaving:
                    return
                if self._pending is None or self._holdings is None:
                    return
                if self._in_step:
                    return
                sent, self._pending = self._pending, None
                holdings = self._holdings
                self._is_applying = True
            least_bytes: int | None = None
            try:
                least_bytes = holdings.change(sent.share)
                in_use_bytes = holdings.in_use_bytes()
                if least_bytes is None:
                    self._granted = sent.share
            finally:
                with self._changed:
                    self._is_applying = False
                    self._changed.notify_all()
            sent.answer(
                encode("ack", serial=sent.serial, in_use_bytes=in_use_bytes)
                if least_bytes is None
                else encode("decline", serial=sent.serial, least_bytes=least_bytes)
            )

    def _say(self, data: bytes) -> None:
        with self._changed:
            if self._requests is not None:
                self._requests.put(data)

    # The stream.

    def _keep_in_touch(self) -> None:
        """Until the job leaves or is refused: a stream, and another one when it breaks."""
        pause_s = _SOON_S
        told = False
        while not self._is_over():
            begun_s = time.monotonic()
            try:
                self._listen()
            except (self._grpc.RpcError, OSError, SocketRefused, BadMessage):
                pass
            with self._changed:
                was_in_touch, self._in_touch = self._in_touch, False
                self._requests = self._pending = None
            if self._is_over():
                break
            if was_in_touch:
                told = False
                pause_s = _SOON_S
            if self._granted is not None and not told:
                told = True
                self._note(
                    f"the broker at {self.socket} is gone: training goes on with what it has "
                    "until there is one again"
                )
            if time.monotonic() - begun_s < pause_s:
                with self._changed:
                    self._changed.wait_for(lambda: self._leaving, pause_s)
            pause_s = min(2 * pause_s, _LATEST_S)
        if self._problem and not self._leaving and self._granted is not None:
            self._note(
                f"the broker refuses this job from now on, which goes on with what it has: "
                f"{self._problem}"
            )
        with self._changed:
            self._changed.notify_all()

    def _is_over(self) -> bool:
        return self._leaving or bool(self._problem)

    def _listen(self) -> None:
        """One stream, until it ends."""
        check_socket(self.socket)
        requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        requests.put(self._hello())
        options = [*CHANNEL_OPTIONS, ("grpc.default_authority", "localhost")]
        with self._grpc.insecure_channel(f"unix:{self.socket}", options) as channel:
            self._call = channel.stream_stream(METHOD)(_until_none(requests))
            try:
                for data in self._call:
                    self._take(parse(data, FROM_BROKERS), requests)
                    if self._problem:
                        break
            finally:
                requests.put(None)

    def _hello(self) -> bytes:
        with self._changed:
            self._changed.wait_for(lambda: not self._is_applying)
            granted = self._granted
            if granted is None:
                # Nothing is held: another broker need know nothing of the last one's lease.
                if self._lease is not None:
                    self._lease.release()
                self._lease = self._welcome = None
        welcome = self._welcome or {"lease": "", "token": ""}
        return encode(
            "hello",
            version=VERSION,
            name=self._name,
            device=self._device,
            weight=self._share.weight,
            minimum_bytes=self._minimum_bytes,
            wanted_bytes=self._wanted_bytes,
            lease=welcome["lease"],
            token=welcome["token"],
            held_bytes=0 if granted is None else granted.budget_bytes,
        )

    def _take(self, message: Message, requests: queue.SimpleQueue[bytes | None]) -> None:
        """What the broker says."""
        kind = message["kind"]
        if kind == "welcome":
            is_new = self._welcome is None
            if is_new:
                self._lease = HeldLease(leases_of(self.socket) / message["lease"])
            self._welcome = message
            with self._changed:
                if self._leaving:
                    return
                self._requests = requests
                self._in_touch = True
            if is_new:
                self._say(encode("leased"))
            elif self._trace is not None:
                self._say(self._trace.to_bytes())
        elif kind == "waiting":
            self._waits_because = message["why"]
        elif kind == "refused":
            with self._changed:
                self._problem = message["why"]
                self._changed.notify_all()
        elif kind == "share":
            self._take_share(message, requests)

    def _take_share(self, message: Message, requests: queue.SimpleQueue[bytes | None]) -> None:
        assert self._welcome is not None
        share = GrantedShare(
            message["budget_bytes"],
            message["link_share"],
            self._welcome["device"],
            self._welcome["device_bytes"],
            message["jobs"],
        )
        sent = _Sent(message["serial"], share, requests)
        with self._changed:
            first = self._granted is None
            if first:
                self._granted = share
                self._changed.notify_all()
            else:
                self._pending = sent
        if first:
            sent.answer(encode("ack", serial=sent.serial, in_use_bytes=0))
        else:
            self._settle()


def _until_none(requests: queue.SimpleQueue[bytes | None]) -> Iterator[bytes]:
    while (data := requests.get()) is not None:
        yield data
