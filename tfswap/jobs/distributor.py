"""ShareDistributor: divides the device whenever jobs change, and sends each job its share."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tfswap.io.amounts import readable_bytes
from tfswap.jobs.joint_division import Division, JointDivision
from tfswap.jobs.ledger import Grant, Ledger, LedgerError
from tfswap.jobs.member import Member, refuse
from tfswap.jobs.messages import encode
from tfswap.jobs.roster import Roster

# Changes within this time lead to one division.
_BATCH_S = 0.02
# A job that has waited this long for its target takes the memory that is free.
_PARTIAL_AFTER_S = 1.0
# A share changes only if it differs by more than this fraction of the device.
_MIN_CHANGE = 0.01


class ShareDistributor:
    """Divides the device among the members, and sends them their grants.

    Divisions take seconds and run in a thread on immutable claims; everything else runs in the
    broker's event loop.

    Args:
        device: The device's name, for messages.
        ledger: The accounts of the jobs.
        roster: The members.
        division: How to divide.
        log: Receives a log line for each grant.
    """

    def __init__(
        self,
        device: str,
        ledger: Ledger,
        roster: Roster,
        division: JointDivision,
        log: Callable[[str], None],
    ) -> None:
        self._device = device
        self._ledger = ledger
        self._roster = roster
        self._division = division
        self._log = log
        self._changed = asyncio.Event()
        self._planner = ThreadPoolExecutor(1, "tfswap-division")

    def notify_change(self) -> None:
        """Request a new division, since members, their steps or their connections changed."""
        self._roster.check_invariants()
        self._changed.set()

    async def run(self) -> None:
        """Divide the device after each change, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._changed.wait()
            await asyncio.sleep(_BATCH_S)
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
                # A trace that cannot be planned must not stop the broker.
                self._log(f"a division failed and is repeated without the jobs' steps: {error!r}")
                claims = [dataclasses.replace(claim, trace=None) for claim in claims]
                division = self._division.divide(claims, capacity_bytes)
            self._set_targets(division)

    def close(self) -> None:
        """Stop the planning thread, without waiting for it."""
        self._planner.shutdown(wait=False, cancel_futures=True)

    def _set_targets(self, division: Division) -> None:
        """Set new targets, but keep shares that change little."""
        ledger = self._ledger
        targets = {job: b for job, b in division.budget_bytes.items() if job in self._roster}
        close_bytes = _MIN_CHANGE * ledger.capacity_bytes
        kept = {
            job: granted
            if 0 < (granted := ledger.granted_bytes(job)) and abs(granted - target) <= close_bytes
            else target
            for job, target in targets.items()
        }
        links = {job: s for job, s in division.link_shares.items() if job in self._roster}
        for each in (kept, targets):
            try:
                ledger.set_targets(each, links)
                break
            except LedgerError:
                continue  # the jobs changed during the division
        else:
            self.notify_change()
        self.send_due()
        self.send_waiting()

    def send_due(self) -> None:
        """Send the grants that free memory allows."""
        now_s = time.monotonic()
        partial_from = {
            member.lease: max(member.record.minimum_bytes, 1)
            for member in self._roster
            if member.waits_since_s is not None and now_s - member.waits_since_s > _PARTIAL_AFTER_S
        }
        for grant in self._ledger.take_due(partial_from):
            self._send(self._roster[grant.job], grant)
        for member in self._roster:
            if self._ledger.is_short(member.lease):
                member.waits_since_s = member.waits_since_s or now_s
            else:
                member.waits_since_s = None
        self._roster.check_invariants()

    def _send(self, member: Member, grant: Grant) -> None:
        assert member.stream is not None
        try:
            # Before the message: the next broker must know of the grant if this one dies.
            self._roster.write_record(member)
        except OSError as error:
            refuse(member.stream, member, f"its lease cannot be written: {error}", self._log)
            return
        member.waiting_reason = ""
        member.stream.send(
            encode(
                "share",
                serial=grant.serial,
                budget_bytes=grant.budget_bytes,
                link_share=grant.link_share,
                jobs=len(self._roster),
            )
        )
        self._log(
            f"{member.title} gets {readable_bytes(grant.budget_bytes)} and "
            f"{grant.link_share:.0%} of the link"
        )

    def send_waiting(self) -> None:
        """Tell the jobs without a share why they wait, if the reason is new."""
        use = self._roster.describe_use()
        for member in self._roster:
            if member.stream is None or self._ledger.granted_bytes(member.lease):
                continue
            least_bytes = max(member.record.minimum_bytes, 1)
            reason = (
                f"{self._device} has {readable_bytes(self._ledger.capacity_bytes)}; {use}; this "
                f"job needs at least {readable_bytes(least_bytes)}"
            )
            if reason != member.waiting_reason:
                member.waiting_reason = reason
                member.stream.send(encode("waiting", why=reason[:4000]))
