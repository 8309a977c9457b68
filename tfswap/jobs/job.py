"""Job: a process's connection to the broker that divides its device.

A thread listens to the broker. A new share is installed between steps: by that thread if no step
runs, else by the training thread at the end of its step. The job acknowledges the share only then.
If the broker dies, the job keeps its share and tries to reconnect.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfswap.jobs.granted_share import GrantedShare, Holdings
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

# First and longest pause between attempts to reconnect.
_FIRST_RETRY_S, _LONGEST_RETRY_S = 0.1, 5.0
# A job that waits longer than this for its first share reports it.
_SILENT_WAIT_S = 2.0


class BrokerError(RuntimeError):
    """There is no broker, or it grants no share; the message has the reason and the remedy."""


@dataclass(frozen=True)
class _Offer:
    """A share from the broker, to be answered on the stream on which it arrived."""

    serial: int
    share: GrantedShare
    requests: queue.SimpleQueue[bytes | None]

    def answer(self, data: bytes) -> None:
        self.requests.put(data)


class Job:
    """A job of a broker, from `join` to `leave`. Thread-safe.

    Args:
        socket: The broker's socket.
        name: The job's name.
        share: The requested share.
        wanted_bytes: Largest useful budget; 0 for the whole device.
        device: "CPU" or "GPU".
        note: Receives messages for the user.

    Raises:
        ImportError: gRPC is not installed.
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
        self._changed = threading.Condition()  # guards the fields below
        self._granted: GrantedShare | None = None
        self._pending: _Offer | None = None
        self._in_step = False
        self._is_applying = False
        self._leaving = False
        self._problem = ""
        self._waiting_reason = ""
        self._connected = False
        self._thread: threading.Thread | None = None

    def join(self, in_use_bytes: int = 0) -> GrantedShare:
        """Connect to the broker, and wait for the first share.

        Args:
            in_use_bytes: Memory that the job uses already, a lower bound of its share.

        Raises:
            BrokerError: There is no broker, it refuses the job, or it grants no share in time.
        """
        try:
            check_socket(self.socket)
        except SocketRefused as error:
            raise BrokerError(f"tfswap: {error}") from None
        self._minimum_bytes = max(self._minimum_bytes, in_use_bytes)
        self._thread = threading.Thread(target=self._stay_connected, name="tfswap-job", daemon=True)
        self._thread.start()
        wait_s = self._share.wait_s
        self._wait_for_share(min(wait_s, _SILENT_WAIT_S))
        if wait_s > _SILENT_WAIT_S and self._granted is None and not self._problem:
            self._note(f"waiting for a share of the device: {self._waiting_reason or 'no answer'}")
            self._wait_for_share(wait_s - _SILENT_WAIT_S)
        granted, problem, why = self._granted, self._problem, self._waiting_reason
        if granted is not None:
            return granted
        self.leave()
        if problem:
            raise BrokerError(f"tfswap: the broker at {self.socket} refused this job: {problem}")
        raise BrokerError(
            f"tfswap: the broker at {self.socket} had no share for this job within {wait_s:g} s"
            + (f": {why}" if why else "")
            + ". End another job, request less (budget=, share=tfswap.Share(minimum=...)), or wait "
            "longer (share=tfswap.Share(wait_s=...))"
        )

    def _wait_for_share(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._granted or self._problem, seconds)

    def hold(self, holdings: Holdings) -> None:
        """Set the object that installs shares, and install a share that has arrived already."""
        with self._changed:
            self._holdings = holdings
        self._install_pending()

    def leave(self) -> None:
        """Return the share to the broker. Further calls have no effect."""
        with self._changed:
            if self._leaving:
                return
            self._leaving = True
            self._pending = None
            requests = self._requests
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._is_applying, 10.0)
        # Before the message: the broker checks the lease when it receives it.
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

    @property
    def granted(self) -> GrantedShare | None:
        """The current share; None before the first one."""
        return self._granted

    @property
    def in_touch(self) -> bool:
        """Return whether the job is connected to the broker."""
        return self._connected

    # Steps.

    def step_begins(self) -> None:
        """Block changes of the share until `step_ended`. Waits for a change that is under way."""
        self._install_pending()
        with self._changed:
            self._changed.wait_for(lambda: not self._is_applying)
            self._in_step = True

    def step_ended(self) -> None:
        """Allow changes again, and install a share that arrived in the step. May be repeated."""
        with self._changed:
            if not self._in_step:
                return
            self._in_step = False
        self._install_pending()

    def profiled(self, trace: JobTrace) -> None:
        """Send a profiled step to the broker."""
        self._trace = trace
        self._send(trace.to_bytes())

    def _install_pending(self) -> None:
        """Install the last share that arrived, unless a step runs."""
        while True:
            with self._changed:
                if self._is_applying or self._leaving:
                    return
                if self._pending is None or self._holdings is None:
                    return
                if self._in_step:
                    return
                offer, self._pending = self._pending, None
                holdings = self._holdings
                self._is_applying = True
            least_bytes: int | None = None
            try:
                least_bytes = holdings.change(offer.share)
                in_use_bytes = holdings.in_use_bytes()
                if least_bytes is None:
                    self._granted = offer.share
            finally:
                with self._changed:
                    self._is_applying = False
                    self._changed.notify_all()
            offer.answer(
                encode("ack", serial=offer.serial, in_use_bytes=in_use_bytes)
                if least_bytes is None
                else encode("decline", serial=offer.serial, least_bytes=least_bytes)
            )

    def _send(self, data: bytes) -> None:
        with self._changed:
            if self._requests is not None:
                self._requests.put(data)

    # The stream.

    def _stay_connected(self) -> None:
        """Listen to the broker and reconnect, until the job leaves or is refused."""
        pause_s = _FIRST_RETRY_S
        noted = False
        while not self._is_over():
            begun_s = time.monotonic()
            try:
                self._listen()
            except (self._grpc.RpcError, OSError, SocketRefused, BadMessage):
                pass
            with self._changed:
                was_connected, self._connected = self._connected, False
                self._requests = self._pending = None
            if self._is_over():
                break
            if was_connected:
                noted = False
                pause_s = _FIRST_RETRY_S
            if self._granted is not None and not noted:
                noted = True
                self._note(
                    f"the broker at {self.socket} is gone: training keeps its current share until "
                    "a broker is available again"
                )
            if time.monotonic() - begun_s < pause_s:
                with self._changed:
                    self._changed.wait_for(lambda: self._leaving, pause_s)
            pause_s = min(2 * pause_s, _LONGEST_RETRY_S)
        if self._problem and not self._leaving and self._granted is not None:
            self._note(
                f"the broker no longer accepts this job, which keeps its current share: "
                f"{self._problem}"
            )
        with self._changed:
            self._changed.notify_all()

    def _is_over(self) -> bool:
        return self._leaving or bool(self._problem)

    def _listen(self) -> None:
        check_socket(self.socket)
        requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        requests.put(self._hello())
        options = [*CHANNEL_OPTIONS, ("grpc.default_authority", "localhost")]
        with self._grpc.insecure_channel(f"unix:{self.socket}", options) as channel:
            self._call = channel.stream_stream(METHOD)(iter(requests.get, None))
            try:
                for data in self._call:
                    self._handle(parse(data, FROM_BROKERS), requests)
                    if self._problem:
                        break
            finally:
                requests.put(None)

    def _hello(self) -> bytes:
        with self._changed:
            self._changed.wait_for(lambda: not self._is_applying)
            granted = self._granted
            if granted is None:
                # Without a share, the lease of an earlier broker is of no use.
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

    def _handle(self, message: Message, requests: queue.SimpleQueue[bytes | None]) -> None:
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
                self._connected = True
            if is_new:
                self._send(encode("leased"))
            elif self._trace is not None:
                self._send(self._trace.to_bytes())
        elif kind == "waiting":
            self._waiting_reason = message["why"]
        elif kind == "refused":
            with self._changed:
                self._problem = message["why"]
                self._changed.notify_all()
        elif kind == "share":
            self._handle_share(message, requests)

    def _handle_share(self, message: Message, requests: queue.SimpleQueue[bytes | None]) -> None:
        assert self._welcome is not None
        share = GrantedShare(
            message["budget_bytes"],
            message["link_share"],
            self._welcome["device"],
            self._welcome["device_bytes"],
            message["jobs"],
        )
        offer = _Offer(message["serial"], share, requests)
        with self._changed:
            first = self._granted is None
            if first:
                self._granted = share
                self._changed.notify_all()
            else:
                self._pending = offer
        if first:
            offer.answer(encode("ack", serial=offer.serial, in_use_bytes=0))
        else:
            self._install_pending()
