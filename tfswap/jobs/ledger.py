"""Ledger: the grants of all jobs on a device, and the memory that each may be using.

::

    granted   6 GiB ──────┐ sent            A job may use the maximum of its acknowledged grant
    to A                  └───────── 4 GiB  and of all grants sent since. A smaller grant frees
    A uses    6 GiB ────────────┐ acked     memory only when the job acknowledges it, a larger
                                └─── 4 GiB  one counts as soon as it is sent.
    granted   2 GiB ────────────┐
    to B                        └─── 4 GiB  So B's grant is sent when A has acknowledged its own.

The sum of what all jobs may use never exceeds the capacity, even if messages are late or lost.
The ledger does no I/O and reads no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


class LedgerError(ValueError):
    """An invalid operation. The ledger is unchanged."""


@dataclass(frozen=True)
class Grant:
    """A share of the device that is sent to a job.

    Attributes:
        job: The job's name.
        serial: Number of the grant among the job's, from 1.
        budget_bytes: The job's new memory budget.
        link_share: Fraction of the link's bandwidth for the job's copies.
    """

    job: str
    serial: int
    budget_bytes: int
    link_share: float


@dataclass
class _Account:
    held_bytes: int = 0  # the acknowledged grant
    sent: dict[int, int] = field(default_factory=dict)  # unacknowledged grants by serial
    serial: int = 0
    granted_bytes: int = 0  # the last grant
    link_share: float = 1.0
    target_bytes: int = 0
    target_link_share: float = 1.0
    is_connected: bool = True

    @property
    def max_bytes(self) -> int:
        return max(self.held_bytes, *self.sent.values(), 0)


class Ledger:
    """The accounts of all jobs on one device.

    Args:
        capacity_bytes: Memory of the device for all jobs together.
    """

    def __init__(self, capacity_bytes: int) -> None:
        if capacity_bytes <= 0:
            raise ValueError(f"the capacity must be above 0 bytes; got {capacity_bytes}")
        self.capacity_bytes = capacity_bytes
        self._accounts: dict[str, _Account] = {}

    @property
    def jobs(self) -> tuple[str, ...]:
        """All jobs, in the order of joining."""
        return tuple(self._accounts)

    @property
    def free_bytes(self) -> int:
        """The memory that no job may be using."""
        return self.capacity_bytes - sum(a.max_bytes for a in self._accounts.values())

    def held_bytes(self, job: str) -> int:
        """Return the maximum memory that a job may be using now."""
        return self._account(job).max_bytes

    def granted_bytes(self, job: str) -> int:
        """Return a job's last grant, or 0 before the first one."""
        return self._account(job).granted_bytes

    def link_share(self, job: str) -> float:
        """Return the link share of a job's last grant."""
        return self._account(job).link_share

    def is_connected(self, job: str) -> bool:
        """Return whether messages can be sent to a job."""
        return self._account(job).is_connected

    def is_short(self, job: str) -> bool:
        """Return whether a connected job's last grant is below its target."""
        account = self._account(job)
        return account.is_connected and account.granted_bytes < account.target_bytes

    # Jobs that join and leave.

    def add(self, job: str) -> None:
        """Add a job without memory.

        Raises:
            LedgerError: The job already exists.
        """
        if job in self._accounts:
            raise LedgerError(f"job {job!r} exists already")
        self._accounts[job] = _Account()

    def adopt(self, job: str, held_bytes: int) -> None:
        """Add a disconnected job that an earlier broker granted `held_bytes`.

        Raises:
            LedgerError: The job already exists, or its memory exceeds the free memory.
        """
        if not 0 <= held_bytes <= self.free_bytes:
            raise LedgerError(
                f"job {job!r} may hold {held_bytes} bytes, and only {self.free_bytes} of "
                f"{self.capacity_bytes} are free"
            )
        self.add(job)
        account = self._accounts[job]
        account.held_bytes = account.granted_bytes = account.target_bytes = held_bytes
        account.is_connected = False

    def disconnect(self, job: str) -> None:
        """Mark a job as disconnected. Its memory stays reserved."""
        account = self._account(job)
        account.is_connected = False
        account.target_bytes = account.max_bytes

    def reconnect(self, job: str, held_bytes: int) -> None:
        """Mark a job as connected again, with the grant that it reports.

        Raises:
            LedgerError: The job is connected, or was never granted that much.
        """
        account = self._account(job)
        if account.is_connected:
            raise LedgerError(f"job {job!r} is connected already")
        if held_bytes not in (account.held_bytes, *account.sent.values()):
            raise LedgerError(
                f"job {job!r} reports a share of {held_bytes} bytes, which it was never granted"
            )
        account.held_bytes = account.granted_bytes = account.target_bytes = held_bytes
        account.sent.clear()
        account.is_connected = True

    def remove(self, job: str) -> None:
        """Remove a job that has ended, and free its memory."""
        self._account(job)
        del self._accounts[job]

    # Grants.

    def set_targets(self, targets: Mapping[str, int], link_shares: Mapping[str, float]) -> None:
        """Set the shares that jobs are to get as soon as memory is free.

        Args:
            targets: Bytes by job. Disconnected jobs and jobs without a target keep their memory;
                jobs that have none wait.
            link_shares: Fractions of the link's bandwidth by job; other jobs keep theirs.

        Raises:
            LedgerError: A job does not exist, a target is negative, or the sum of the targets
                exceeds the capacity.
        """
        wanted = {job: account.max_bytes for job, account in self._accounts.items()}
        for job, target_bytes in targets.items():
            if target_bytes < 0:
                raise LedgerError(f"job {job!r} cannot have {target_bytes} bytes")
            if self._account(job).is_connected:
                wanted[job] = target_bytes
        if sum(wanted.values()) > self.capacity_bytes:
            raise LedgerError(
                f"targets of {sum(wanted.values())} bytes exceed the capacity of "
                f"{self.capacity_bytes} bytes"
            )
        for job, target_bytes in wanted.items():
            account = self._accounts[job]
            account.target_bytes = target_bytes
            account.target_link_share = link_shares.get(job, account.target_link_share)

    def take_due(self, partial_from: Mapping[str, int] | None = None) -> list[Grant]:
        """Return the grants that free memory allows now, and record them as sent.

        Args:
            partial_from: Jobs that no longer wait for their whole target: they get the free
                memory if it raises their budget to at least this many bytes.
        """
        grants: list[Grant] = []
        shrinking = [j for j, a in self._accounts.items() if a.target_bytes <= a.max_bytes]
        growing = [j for j, a in self._accounts.items() if a.target_bytes > a.max_bytes]
        for job in (*shrinking, *growing):
            account = self._accounts[job]
            if not account.is_connected or account.target_bytes == 0:
                continue
            budget_bytes = min(account.target_bytes, account.max_bytes + self.free_bytes)
            if budget_bytes < account.target_bytes:
                enough = (partial_from or {}).get(job)
                if enough is None or budget_bytes < max(enough, account.granted_bytes + 1):
                    budget_bytes = account.granted_bytes
            if budget_bytes == 0:
                continue
            same_link = account.link_share == account.target_link_share
            if budget_bytes == account.granted_bytes and same_link:
                continue
            grants.append(self._send(job, account, budget_bytes))
        return grants

    def _send(self, job: str, account: _Account, budget_bytes: int) -> Grant:
        account.serial += 1
        account.sent[account.serial] = budget_bytes
        account.granted_bytes = budget_bytes
        account.link_share = account.target_link_share
        return Grant(job, account.serial, budget_bytes, account.link_share)

    def acknowledge(self, job: str, serial: int) -> None:
        """Record that a job is within a grant, which ends all earlier ones.

        Raises:
            LedgerError: The grant was never sent, or was acknowledged before.
        """
        account = self._account(job)
        if serial not in account.sent:
            raise LedgerError(f"job {job!r} acknowledges grant {serial}, which it was never sent")
        account.held_bytes = account.sent[serial]
        self._forget_sent(account, serial)

    def decline(self, job: str, serial: int) -> None:
        """Record that a job cannot shrink to a grant, and keeps its acknowledged one.

        Raises:
            LedgerError: The grant was never sent, or does not shrink the job.
        """
        account = self._account(job)
        if serial not in account.sent:
            raise LedgerError(f"job {job!r} declines grant {serial}, which it was never sent")
        if account.sent[serial] >= account.held_bytes:
            raise LedgerError(f"job {job!r} declines grant {serial}, which takes nothing from it")
        self._forget_sent(account, serial)
        if not account.sent:
            account.granted_bytes = account.target_bytes = account.held_bytes

    @staticmethod
    def _forget_sent(account: _Account, last_serial: int) -> None:
        for serial in [each for each in account.sent if each <= last_serial]:
            del account.sent[serial]

    def check_invariants(self, jobs: Iterable[str] | None = None) -> None:
        """Check that the accounts are consistent and within the capacity.

        Args:
            jobs: The jobs that must have accounts; None for any.

        Raises:
            AssertionError: They are not.
        """
        held = {job: account.max_bytes for job, account in self._accounts.items()}
        assert all(each >= 0 for each in held.values()), held
        assert sum(held.values()) <= self.capacity_bytes, held
        assert self.free_bytes == self.capacity_bytes - sum(held.values())
        assert jobs is None or set(jobs) == set(held), (jobs, held)

    def _account(self, job: str) -> _Account:
        account = self._accounts.get(job)
        if account is None:
            raise LedgerError(f"there is no job {job!r}")
        return account
