"""Members: the jobs of a broker, as it knows them, and what it says to each."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any

from tfswap.jobs.job_trace import JobTrace
from tfswap.jobs.lease import LeaseRecord

_CLOSING_S = 1.0


class Line:
    """What is said to one job, in order.

    Args:
        context: Of its stream.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._sender = asyncio.create_task(self._send())

    def say(self, data: bytes) -> None:
        """Sends a message after those that were said before, without waiting."""
        self._queue.put_nowait(data)

    async def _send(self) -> None:
        while (data := await self._queue.get()) is not None:
            await self._context.write(data)

    async def close(self) -> None:
        """Sends what is left, if the other end listens."""
        self._queue.put_nowait(None)
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await asyncio.wait_for(self._sender, _CLOSING_S)


@dataclass
class Member:
    """A job.

    Attributes:
        lease: Its name in the ledger, and of its lease.
        record: What it asked for.
        line: To it; None while it is out of touch.
        pid: Of its process, as the kernel says.
        trace: Of its step; None before it has sent one.
        declined: The least it said it can do with, and until when that is believed.
        waits_since_s: Since when it has less than its target.
        told: Why it must wait, as it was told last.
        gave_up: Whether nobody held its lease at the last look.
        ended: Why it will not come back; "" if it may.
    """

    lease: str
    record: LeaseRecord
    line: Line | None = None
    pid: int = 0
    trace: JobTrace | None = None
    declined: tuple[int, float] = (0, 0.0)
    waits_since_s: float | None = None
    told: str = ""
    gave_up: bool = False
    ended: str = ""

    @property
    def title(self) -> str:
        """By which it is spoken of."""
        return f"{self.record.name!r} (process {self.pid})"
