"""Members: the broker's state of its jobs, and the streams to them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tfswap.jobs.job_trace import JobTrace
from tfswap.jobs.lease import LeaseRecord
from tfswap.jobs.messages import encode

_CLOSE_TIMEOUT_S = 1.0


class JobStream:
    """Sends messages to one job, in order.

    Args:
        context: The gRPC context of the job's stream.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._sender = asyncio.create_task(self._send_queued())

    def send(self, data: bytes) -> None:
        """Queue a message, without waiting."""
        self._queue.put_nowait(data)

    async def _send_queued(self) -> None:
        while (data := await self._queue.get()) is not None:
            await self._context.write(data)

    async def close(self) -> None:
        """Send the queued messages if the job still listens."""
        self._queue.put_nowait(None)
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await asyncio.wait_for(self._sender, _CLOSE_TIMEOUT_S)


@dataclass
class Member:
    """A job of the broker.

    Attributes:
        lease: Name of its lease, and of its account in the ledger.
        record: What it requested.
        stream: The stream to it; None while it is disconnected.
        pid: Its process, as reported by the kernel.
        trace: Its step; None before it has sent one.
        declined_bytes: The least budget that it reported when it declined a grant.
        declined_until_s: How long that report is valid, on the monotonic clock.
        waits_since_s: Since when it has less than its target; None if it has it.
        waiting_reason: The reason in the last "waiting" message.
        lease_lost: Whether the last check found its lease unlocked.
        end_reason: Why it cannot reconnect; "" if it may.
    """

    lease: str
    record: LeaseRecord
    stream: JobStream | None = None
    pid: int = 0
    trace: JobTrace | None = None
    declined_bytes: int = 0
    declined_until_s: float = 0.0
    waits_since_s: float | None = None
    waiting_reason: str = ""
    lease_lost: bool = False
    end_reason: str = ""

    @property
    def title(self) -> str:
        """Name and process, for log lines and messages."""
        return f"{self.record.name!r} (process {self.pid})"


def refuse(
    stream: JobStream, member: Member | None, reason: str, log: Callable[[str], None]
) -> None:
    """Send a refusal to a job, and log it.

    Args:
        stream: The stream to the job.
        member: The job, which cannot reconnect; None if it has not joined.
        reason: Why the job is refused.
        log: Receives a log line.
    """
    stream.send(encode("refused", why=reason[:1000]))
    if member is not None:
        member.end_reason = reason
    log(f"{'a job' if member is None else member.title} was refused: {reason}")
