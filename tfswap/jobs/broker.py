"""Broker: divides one device among the jobs of a user.

The broker is single-threaded: code between two awaits is atomic. It must run in its own process,
without jobs, because POSIX locks do not conflict within a process.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tfswap.io.amounts import readable_bytes
from tfswap.jobs.distributor import ShareDistributor
from tfswap.jobs.division import LEAST_SLOWDOWN
from tfswap.jobs.grpc_library import CHANNEL_OPTIONS, load_grpc
from tfswap.jobs.job_trace import MAGIC, BadTrace, JobTrace
from tfswap.jobs.joint_division import JointDivision
from tfswap.jobs.lease_folder import LeaseFolder
from tfswap.jobs.ledger import Ledger, LedgerError
from tfswap.jobs.member import JobStream, Member, refuse
from tfswap.jobs.messages import FROM_JOBS, METHOD, VERSION, BadMessage, Message, encode, parse
from tfswap.jobs.rate_limit import RateLimit
from tfswap.jobs.roster import Roster
from tfswap.jobs.socket_path import SocketRefused

MAX_JOBS = 64

# A job must send its hello and lock its lease within this time.
_JOIN_TIMEOUT_S = 10.0
# The stream of a job that died between hello and lease ends within this time.
_STREAM_END_S = 0.5
# How often the leases of disconnected jobs and of all jobs are checked.
_CHECK_DISCONNECTED_S, _CHECK_ALL_S = 0.05, 1.0
# How long the least budget in a "decline" message is valid; the job may need less later.
_DECLINED_S = 60.0
_MESSAGES, _MESSAGES_PER_S = 50, 20
_TRACES, _TRACES_PER_S = 4, 0.2


class Refused(Exception):
    """The broker refuses a job, for the reason in the message."""


class _Disconnected(Exception):
    """The stream ended before the job joined."""


class Broker:
    """A device, its jobs, and the socket on which they request shares.

    Args:
        device: The device's name, such as "CPU:0" or "GPU:1".
        budget_bytes: Maximum memory of all jobs together.
        socket: Path of the socket. Its folder is created, or must be private.
        policy: "slowdown" or "weights"; see `tfswap.jobs.division`.
        weights: Weights by job name, which override those that jobs request.
        minima: Minimum bytes by job name, which raise those that jobs request.
        log: Receives a log line for each join, leave and share.

    Attributes:
        ledger: The accounts of the jobs.

    Raises:
        ImportError: gRPC is not installed.
    """

    def __init__(
        self,
        device: str,
        budget_bytes: int,
        socket: Path,
        policy: str = LEAST_SLOWDOWN,
        *,
        weights: Mapping[str, float] | None = None,
        minima: Mapping[str, int] | None = None,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._grpc = load_grpc()
        self.device = device
        self.socket = socket
        self.ledger = Ledger(budget_bytes)
        self._leases = LeaseFolder(socket)
        self._roster = Roster(self.ledger, self._leases, weights or {}, minima or {})
        self._shares = ShareDistributor(
            device, self.ledger, self._roster, JointDivision(policy), log
        )
        self._log = log
        self._server: Any = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Adopt running jobs of an earlier broker, and listen.

        Raises:
            BrokerRunning: Another broker listens on the socket.
            SocketRefused: The folder is not private, or the socket cannot be created.
            ValueError: The adopted jobs hold more than the budget.
        """
        self._leases.open()
        try:
            for member in self._roster.adopt():
                held = readable_bytes(member.record.held_bytes)
                self._log(f"{member.title} still holds {held}")
            await self._listen()
        except BaseException:
            self._leases.unlock()
            raise
        self._tasks = [
            asyncio.create_task(self._shares.run()),
            asyncio.create_task(self._check_leases()),
        ]
        self._shares.notify_change()

    async def serve(self) -> None:
        """Serve until cancelled. Exceptions of the broker's tasks are bugs and propagate."""
        await asyncio.gather(*self._tasks)

    async def stop(self) -> None:
        """Stop listening. Running jobs keep their shares and leases."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.stop(0.2)
        self._shares.close()
        self.socket.unlink(missing_ok=True)
        self._leases.close()

    async def _listen(self) -> None:
        grpc = self._grpc
        server = grpc.aio.server(
            options=[*CHANNEL_OPTIONS, ("grpc.max_concurrent_streams", 4 * MAX_JOBS)]
        )
        handler = grpc.stream_stream_rpc_method_handler(self._serve_job)
        service, _, method = METHOD.lstrip("/").partition("/")
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: handler}),)
        )
        self.socket.unlink(missing_ok=True)
        umask = os.umask(0o177)
        try:
            server.add_insecure_port(f"unix:{self.socket}")
        except RuntimeError as error:
            raise SocketRefused(f"cannot listen on {self.socket}: {error}") from None
        finally:
            os.umask(umask)
        os.chmod(self.socket, 0o600)
        await server.start()
        self._server = server

    # Streams of jobs.

    async def _serve_job(self, requests: Any, context: Any) -> None:
        stream = JobStream(context)
        member: Member | None = None
        limits = RateLimit(_MESSAGES, _MESSAGES_PER_S), RateLimit(_TRACES, _TRACES_PER_S)
        try:
            member = await asyncio.wait_for(self._accept(stream, context), _JOIN_TIMEOUT_S)
            while member.stream is stream and not member.end_reason:
                data = await context.read()
                if data is self._grpc.aio.EOF:
                    break
                self._handle(member, data, limits)
        except (Refused, BadMessage, BadTrace, LedgerError) as error:
            refuse(stream, member, str(error), self._log)
        except (_Disconnected, asyncio.TimeoutError):
            pass  # the job may try again
        finally:
            if member is not None and member.stream is stream:
                self._disconnect(member)
            await stream.close()

    async def _read(self, context: Any) -> Message:
        data = await context.read()
        if data is self._grpc.aio.EOF:
            raise _Disconnected
        return parse(data, FROM_JOBS)

    async def _accept(self, stream: JobStream, context: Any) -> Member:
        """Read the hello; return the member once it holds its lease."""
        hello = await self._read(context)
        self._check_hello(hello)
        if hello["lease"]:
            return self._reconnect(stream, hello)
        member = self._roster.create(hello)
        try:
            self._send_welcome(member, stream)
            if (await self._read(context))["kind"] != "leased":
                raise Refused("the job does not lock its lease")
            pid = self._leases.holder(member.lease)
            if pid is None:
                await asyncio.sleep(_STREAM_END_S)  # a dead job's stream ends meanwhile
                path = self._leases.path(member.lease)
                raise Refused(f"the job reports that it locked {path}, but no process holds it")
            if len(self._roster) >= MAX_JOBS:
                raise Refused(f"there are {MAX_JOBS} jobs already")
            self._roster.add(member)
        except BaseException:
            self._leases.remove(member.lease)
            raise
        member.pid = pid
        member.stream = stream
        self._log(f"{member.title} joined")
        self._shares.notify_change()
        return member

    def _check_hello(self, hello: Message) -> None:
        if hello["kind"] != "hello":
            raise Refused("the first message must be a hello")
        if hello["version"] != VERSION:
            raise Refused(
                f"the broker speaks version {VERSION}, the job {hello['version']}: use the same "
                "release of tfswap for both"
            )
        if hello["device"] != self.device[:3]:
            raise Refused(f"the job trains on a {hello['device']}; the broker has {self.device}")
        if hello["minimum_bytes"] > self.ledger.capacity_bytes:
            raise Refused(
                f"a minimum of {readable_bytes(hello['minimum_bytes'])} is more than the whole "
                f"budget of {readable_bytes(self.ledger.capacity_bytes)}"
            )

    def _send_welcome(self, member: Member, stream: JobStream) -> None:
        stream.send(
            encode(
                "welcome",
                version=VERSION,
                device=self.device,
                device_bytes=self.ledger.capacity_bytes,
                lease=member.lease,
                token=member.record.token,
            )
        )

    def _reconnect(self, stream: JobStream, hello: Message) -> Member:
        member = self._roster.find(hello["lease"], hello["token"])
        if member is None:
            raise Refused("this broker does not know the job's lease")
        if member.end_reason:
            raise Refused(member.end_reason)
        pid = self._leases.holder(member.lease)
        if pid is None:
            raise Refused("the job has released its lease")
        if member.stream is not None:
            self._disconnect(member)  # the end of its old stream was not noticed yet
        try:
            self.ledger.reconnect(member.lease, hello["held_bytes"])
        except LedgerError as error:
            member.end_reason = str(error)
            raise
        member.pid = pid
        member.lease_lost = False
        member.stream = stream
        self._send_welcome(member, stream)
        self._log(f"{member.title} reconnected with {readable_bytes(hello['held_bytes'])}")
        self._roster.write_record(member)
        self._shares.notify_change()
        return member

    def _handle(self, member: Member, data: bytes, limits: tuple[RateLimit, RateLimit]) -> None:
        now_s = time.monotonic()
        is_trace = data.startswith(MAGIC)
        if not limits[is_trace].take(now_s):
            raise Refused("too many messages")
        if is_trace:
            member.trace = JobTrace.from_bytes(data)
            self._shares.notify_change()
            return
        message = parse(data, FROM_JOBS)
        kind = message["kind"]
        if kind == "ack":
            self.ledger.acknowledge(member.lease, message["serial"])
            limits[0].return_token()
            held_bytes = self.ledger.held_bytes(member.lease)
            if message["in_use_bytes"] > held_bytes:
                raise Refused(
                    f"the job uses {readable_bytes(message['in_use_bytes'])}, more than its share "
                    f"of {readable_bytes(held_bytes)}"
                )
            self._roster.write_record(member)
            self._shares.send_due()
        elif kind == "decline":
            self.ledger.decline(member.lease, message["serial"])
            limits[0].return_token()
            held_bytes = self.ledger.held_bytes(member.lease)
            member.declined_bytes = min(message["least_bytes"], held_bytes)
            member.declined_until_s = now_s + _DECLINED_S
            self._log(f"{member.title} needs at least {readable_bytes(member.declined_bytes)}")
            self._shares.notify_change()
        elif kind == "leave":
            member.end_reason = "the job has left"
        else:
            raise Refused(f"unexpected message {kind!r}")

    def _disconnect(self, member: Member) -> None:
        """Handle the end of a stream. A job that still holds its lease keeps its memory."""
        member.stream = None
        self.ledger.disconnect(member.lease)
        if self._leases.holder(member.lease) is None:
            self._remove(member)
            return
        if not member.end_reason:
            held = readable_bytes(self.ledger.held_bytes(member.lease))
            self._log(f"{member.title} is disconnected and still holds {held}")
        self._shares.notify_change()

    def _remove(self, member: Member) -> None:
        freed_bytes = self._roster.remove(member)
        self._log(f"{member.title} left and released {readable_bytes(freed_bytes)}")
        self._shares.send_due()
        self._shares.notify_change()

    # Leases.

    async def _check_leases(self) -> None:
        checked_s = time.monotonic()
        while True:
            await asyncio.sleep(_CHECK_DISCONNECTED_S)
            check_all = time.monotonic() - checked_s > _CHECK_ALL_S
            for member in list(self._roster):
                if member.stream is not None and not check_all:
                    continue
                if self._leases.holder(member.lease) is None:
                    self._handle_unlocked(member)
            if check_all:
                checked_s = time.monotonic()
                self._shares.send_due()
                self._shares.send_waiting()
                self._expire_declined(checked_s)

    def _handle_unlocked(self, member: Member) -> None:
        stream = member.stream
        if stream is None:
            self._remove(member)
        elif not member.lease_lost:
            member.lease_lost = True  # if the job died, its stream ends before the next check
        elif not member.end_reason:
            refuse(stream, member, "the job has released its lease", self._log)
            self._disconnect(member)

    def _expire_declined(self, now_s: float) -> None:
        expired = [m for m in self._roster if 0 < m.declined_until_s < now_s]
        for member in expired:
            member.declined_bytes, member.declined_until_s = 0, 0.0
        if expired:
            self._shares.notify_change()
