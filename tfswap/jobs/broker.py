"""Broker: gives out shares of one device to the jobs of its user.

One thread, an event loop: what is written below between two awaits happens at once. Divisions,
which take seconds, are worked out by another thread from values, and adopted here.

It must be a process of its own, without jobs: to a process, its own locks look like none.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tfswap.io.amounts import readable_bytes
from tfswap.jobs.division import LEAST_SLOWDOWN
from tfswap.jobs.grpc_library import CHANNEL_OPTIONS, load_grpc
from tfswap.jobs.job_trace import MAGIC, BadTrace, JobTrace
from tfswap.jobs.joint_division import Division, JointDivision
from tfswap.jobs.lease_folder import LeaseFolder
from tfswap.jobs.ledger import Grant, Ledger, LedgerError
from tfswap.jobs.member import Line, Member
from tfswap.jobs.messages import FROM_JOBS, METHOD, VERSION, BadMessage, Message, encode, parse
from tfswap.jobs.rate_limit import RateLimit
from tfswap.jobs.roster import Roster
from tfswap.jobs.socket_path import SocketRefused

MOST_JOBS = 64

# A job that does not answer: it says hello and locks its lease within this.
_GREETING_S = 10.0
_DYING_S = 0.5
# Between looks at the leases of jobs out of touch, and of all.
_LOOK_S, _LOOK_AT_ALL_S = 0.05, 1.0
# Joins and leaves that come together are divided for together.
_TOGETHER_S = 0.02
# After this a job that waits for all of its target takes what there is.
_PATIENCE_S = 1.0
# How long what a job said to be its least is believed: what it held then may be gone.
_DECLINED_S = 60.0
# Shares that differ by less than this part of the device stay as they are.
_WORTH_TELLING = 0.01
_MESSAGES, _MESSAGES_PER_S = 50, 20
_TRACES, _TRACES_PER_S = 4, 0.2


class Refused(Exception):
    """A job is refused; the text says why."""


class _HungUp(Exception):
    """The stream ended before the job had joined."""


class Broker:
    """A device, its jobs, and the socket on which they ask for shares.

    Args:
        device: What it is called: "CPU:0", "GPU:1".
        budget_bytes: What jobs may hold together.
        socket: Where to listen; its folder is made, or must be this user's alone.
        policy: "slowdown" or "weights", see `tfswap.jobs.division`.
        weights: Of jobs by name, whatever they ask for.
        minima: Likewise, in bytes.
        say: Called with a line for each join, leave and share.
        watch: Called whenever the ledger may have changed.

    Attributes:
        ledger: Who holds what.

    Raises:
        ImportError: There is no gRPC.
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
        say: Callable[[str], None] = lambda line: None,
        watch: Callable[[Ledger], None] = lambda ledger: None,
    ) -> None:
        self._grpc = load_grpc()
        self.device = device
        self.socket = socket
        self.ledger = Ledger(budget_bytes)
        self._leases = LeaseFolder(socket)
        self._roster = Roster(self.ledger, self._leases, weights or {}, minima or {})
        self._division = JointDivision(policy)
        self._say = say
        self._watch = watch
        self._server: Any = None
        self._tasks: list[asyncio.Task[None]] = []
        self._planner = ThreadPoolExecutor(1, "tfswap-division")
        # From `start` on, in its loop.
        self._changed: asyncio.Event

    # The beginning and the end.

    async def start(self) -> None:
        """Takes over jobs that hold leases, and listens.

        Raises:
            BrokerRunning: Another one does.
            SocketRefused: The folder is open to others, or the socket cannot be made.
            ValueError: Jobs that are still there hold more than the budget.
        """
        self._changed = asyncio.Event()
        self._leases.open()
        try:
            for member in self._roster.adopt():
                held = readable_bytes(member.record.held_bytes)
                self._say(f"{member.title} still holds {held}")
            await self._listen()
        except BaseException:
            self._leases.unlock()
            raise
        self._tasks = [
            asyncio.create_task(self._divide_when_changed()),
            asyncio.create_task(self._look_at_leases()),
        ]
        self._note_change()

    async def serve(self) -> None:
        """Serves until it is cancelled.

        Raises:
            Exception: Whatever ends one of its tasks, which is a bug.
        """
        await asyncio.gather(*self._tasks)

    async def stop(self) -> None:
        """Stops listening; jobs go on with what they have, and their leases stay."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.stop(0.2)
        self._planner.shutdown(wait=False, cancel_futures=True)
        self.socket.unlink(missing_ok=True)
        self._leases.close()

    async def _listen(self) -> None:
        grpc = self._grpc
        server = grpc.aio.server(
            options=[*CHANNEL_OPTIONS, ("grpc.max_concurrent_streams", 4 * MOST_JOBS)]
        )
        handler = grpc.stream_stream_rpc_method_handler(self._serve)
        service, _, method = METHOD.lstrip("/").partition("/")
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: handler}),)
        )
        self.socket.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            server.add_insecure_port(f"unix:{self.socket}")
        except RuntimeError as error:
            raise SocketRefused(f"{self.socket} cannot be listened on: {error}") from None
        finally:
            os.umask(before)
        os.chmod(self.socket, 0o600)
        await server.start()
        self._server = server

    # A job's stream.

    async def _serve(self, requests: Any, context: Any) -> None:
        line = Line(context)
        member: Member | None = None
        limits = RateLimit(_MESSAGES, _MESSAGES_PER_S), RateLimit(_TRACES, _TRACES_PER_S)
        try:
            member = await asyncio.wait_for(self._greeted(line, context), _GREETING_S)
            while member.line is line and not member.ended:
                data = await context.read()
                if data is self._grpc.aio.EOF:
                    break
                self._hear(member, data, limits)
        except (Refused, BadMessage, BadTrace, LedgerError) as error:
            self._refuse(member, line, str(error))
        except (_HungUp, asyncio.TimeoutError):
            pass  # it may try again
        finally:
            if member is not None and member.line is line:
                self._lose_touch(member)
            await line.close()

    async def _heard(self, context: Any) -> Message:
        data = await context.read()
        if data is self._grpc.aio.EOF:
            raise _HungUp
        return parse(data, FROM_JOBS)

    async def _greeted(self, line: Line, context: Any) -> Member:
        """A member after hello and lease."""
        hello = await self._heard(context)
        if hello["kind"] != "hello":
            raise Refused("the first message must be a hello")
        if hello["version"] != VERSION:
            raise Refused(
                f"the broker speaks version {VERSION}, the job {hello['version']}: they must be of "
                "the same tfswap"
            )
        if hello["device"] != self.device[:3]:
            raise Refused(f"the job trains on a {hello['device']}; the broker has {self.device}")
        if hello["minimum_bytes"] > self.ledger.capacity_bytes:
            raise Refused(
                f"a minimum of {readable_bytes(hello['minimum_bytes'])} is more than the whole "
                f"budget of {readable_bytes(self.ledger.capacity_bytes)}"
            )
        if hello["lease"]:
            return self._back(line, hello)
        member = self._roster.apply(hello)
        try:
            self._welcome(member, line)
            if (await self._heard(context))["kind"] != "leased":
                raise Refused("the job does not lock its lease")
            pid = self._leases.holder(member.lease)
            if pid is None:
                await asyncio.sleep(_DYING_S)  # of one that has died meanwhile the stream ends
                path = self._leases.path(member.lease)
                raise Refused(f"the job says that it has locked {path}, and nobody has")
            if len(self._roster) >= MOST_JOBS:
                raise Refused(f"there are {MOST_JOBS} jobs already")
            self._roster.enter(member)
        except BaseException:
            self._leases.remove(member.lease)
            raise
        member.pid = pid
        member.line = line
        self._say(f"{member.title} joined")
        self._note_change()
        return member

    def _welcome(self, member: Member, line: Line) -> None:
        line.say(
            encode(
                "welcome",
                version=VERSION,
                device=self.device,
                device_bytes=self.ledger.capacity_bytes,
                lease=member.lease,
                token=member.record.token,
            )
        )

    def _back(self, line: Line, hello: Message) -> Member:
        """A job that was out of touch."""
        member = self._roster.known(hello["lease"], hello["token"])
        if member is None:
            raise Refused("this broker does not know the job's lease")
        if member.ended:
            raise Refused(member.ended)
        pid = self._leases.holder(member.lease)
        if pid is None:
            raise Refused("the job has given its lease up")
        if member.line is not None:
            self._lose_touch(member)  # its old stream, of whose end nobody has heard yet
        try:
            self.ledger.resume(member.lease, hello["held_bytes"])
        except LedgerError as error:
            member.ended = str(error)
            raise
        member.pid = pid
        member.gave_up = False
        member.line = line
        self._welcome(member, line)
        self._say(f"{member.title} is back, with {readable_bytes(hello['held_bytes'])}")
        self._roster.write_record(member)
        self._note_change()
        return member

    def _hear(self, member: Member, data: bytes, limits: tuple[RateLimit, RateLimit]) -> None:
        now_s = time.monotonic()
        is_trace = data.startswith(MAGIC)
        if not limits[is_trace].take(now_s):
            raise Refused("too many messages")
        if is_trace:
            member.trace = JobTrace.from_bytes(data)
            self._note_change()
            return
        message = parse(data, FROM_JOBS)
        kind = message["kind"]
        if kind == "ack":
            self.ledger.acknowledge(member.lease, message["serial"])
            limits[0].give_back()
            held_bytes = self.ledger.held_bytes(member.lease)
            if message["in_use_bytes"] > held_bytes:
                raise Refused(
                    f"the job holds {readable_bytes(message['in_use_bytes'])}, and was granted "
                    f"{readable_bytes(held_bytes)}"
                )
            self._roster.write_record(member)
            self._send_due()
        elif kind == "decline":
            self.ledger.decline(member.lease, message["serial"])
            limits[0].give_back()
            held_bytes = self.ledger.held_bytes(member.lease)
            least_bytes = min(message["least_bytes"], held_bytes)
            member.declined = (least_bytes, now_s + _DECLINED_S)
            self._say(f"{member.title} cannot do with less than {readable_bytes(least_bytes)}")
            self._note_change()
        elif kind == "leave":
            member.ended = "the job has left"
        else:
            raise Refused(f"a {kind} that nobody asked for")

    def _refuse(self, member: Member | None, line: Line, why: str) -> None:
        line.say(encode("refused", why=why[:1000]))
        who = "a job" if member is None else member.title
        if member is not None:
            member.ended = why
        self._say(f"{who} was refused: {why}")

    def _lose_touch(self, member: Member) -> None:
        """Nothing is heard from a job; its lease says whether it still holds something."""
        member.line = None
        self.ledger.lose_touch(member.lease)
        if self._leases.holder(member.lease) is None:
            self._remove(member)
            return
        if not member.ended:
            held = readable_bytes(self.ledger.held_bytes(member.lease))
            self._say(f"{member.title} is out of touch, and still holds {held}")
        self._note_change()

    def _remove(self, member: Member) -> None:
        """A job is gone for certain."""
        freed_bytes = self._roster.strike(member)
        self._say(f"{member.title} left, and gives back {readable_bytes(freed_bytes)}")
        self._send_due()
        self._note_change()

    # Shares.

    def _note_change(self) -> None:
        self._roster.check()
        self._watch(self.ledger)
        self._changed.set()

    async def _divide_when_changed(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._changed.wait()
            await asyncio.sleep(_TOGETHER_S)
            self._changed.clear()
            claims = self._roster.claims(time.monotonic())
            capacity_bytes = self._roster.divisible_bytes
            if not claims:
                continue
            try:
                division = await loop.run_in_executor(
                    self._planner, self._division.divide, claims, capacity_bytes
                )
            except Exception as error:
                # A step that cannot be planned takes part in nothing but weights.
                self._say(f"a division failed, and is made without the jobs' steps: {error!r}")
                claims = [dataclasses.replace(claim, trace=None) for claim in claims]
                division = self._division.divide(claims, capacity_bytes)
            self._adopt(division)

    def _adopt(self, division: Division) -> None:
        """Aims at new shares; those that are as good as the old ones stay."""
        ledger = self.ledger
        targets = {job: b for job, b in division.budget_bytes.items() if job in self._roster}
        close_bytes = _WORTH_TELLING * ledger.capacity_bytes
        kept = {
            job: granted
            if 0 < (granted := ledger.granted_bytes(job)) and abs(granted - target) <= close_bytes
            else target
            for job, target in targets.items()
        }
        links = {job: s for job, s in division.link_shares.items() if job in self._roster}
        for each in (kept, targets):
            try:
                ledger.aim(each, links)
                break
            except LedgerError:
                continue  # of jobs as they were when the division was begun
        else:
            self._note_change()
        self._send_due()
        self._tell_those_who_wait()

    def _send_due(self) -> None:
        """Sends the grants that there is room for."""
        now_s = time.monotonic()
        impatient = {
            member.lease: max(member.record.minimum_bytes, 1)
            for member in self._roster
            if member.waits_since_s is not None and now_s - member.waits_since_s > _PATIENCE_S
        }
        for grant in self.ledger.due(impatient):
            self._send(self._roster[grant.job], grant)
        for member in self._roster:
            if self.ledger.is_short(member.lease):
                member.waits_since_s = member.waits_since_s or now_s
            else:
                member.waits_since_s = None
        self._roster.check()
        self._watch(self.ledger)

    def _send(self, member: Member, grant: Grant) -> None:
        assert member.line is not None
        try:
            self._roster.write_record(member)  # first: another broker must know of it
        except OSError as error:
            self._refuse(member, member.line, f"its lease cannot be written: {error}")
            return
        member.told = ""
        jobs = len(self._roster)
        member.line.say(
            encode(
                "share",
                serial=grant.serial,
                budget_bytes=grant.budget_bytes,
                link_share=grant.link_share,
                jobs=jobs,
            )
        )
        self._say(
            f"{member.title} gets {readable_bytes(grant.budget_bytes)} and "
            f"{grant.link_share:.0%} of the link"
        )

    def _tell_those_who_wait(self) -> None:
        held = self._roster.who_holds_what()
        for member in self._roster:
            if member.line is None or self.ledger.granted_bytes(member.lease):
                continue
            least_bytes = max(member.record.minimum_bytes, 1)
            why = (
                f"of {readable_bytes(self.ledger.capacity_bytes)} on {self.device}, {held}; "
                f"this job needs {readable_bytes(least_bytes)} at least"
            )
            if why != member.told:
                member.told = why
                member.line.say(encode("waiting", why=why[:4000]))

    # Leases.

    async def _look_at_leases(self) -> None:
        looked_s = time.monotonic()
        while True:
            await asyncio.sleep(_LOOK_S)
            all_of_them = time.monotonic() - looked_s > _LOOK_AT_ALL_S
            for member in list(self._roster):
                if member.line is not None and not all_of_them:
                    continue
                if self._leases.holder(member.lease) is None:
                    self._given_up(member)
            if all_of_them:
                looked_s = time.monotonic()
                self._send_due()
                self._tell_those_who_wait()
                if any(0 < m.declined[1] < looked_s for m in self._roster):
                    self._forget_declined(looked_s)

    def _given_up(self, member: Member) -> None:
        """Nobody holds a lease any more."""
        line = member.line
        if line is None:
            self._remove(member)
        elif not member.gave_up:
            member.gave_up = True  # it has died, as its stream will say before the next look
        elif not member.ended:
            self._refuse(member, line, "the job has given its lease up")
            self._lose_touch(member)

    def _forget_declined(self, now_s: float) -> None:
        for member in self._roster:
            if 0 < member.declined[1] < now_s:
                member.declined = (0, 0.0)
        self._note_change()
