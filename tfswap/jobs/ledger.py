"""Ledger: who has been granted how much of a device, and who may still be using it.

::

    granted   6 GiB ──────┐ sent            what the job may hold is the largest of what it has
    to A                  └───────── 4 GiB  acknowledged and of all that was sent since: a grant
    A holds   6 GiB ────────────┐ acked     that shrinks frees nothing until the job has said that
                                └─── 4 GiB  it is within it, and one that grows counts at once
    granted   2 GiB ────────────┐
    to B                        └─── 4 GiB  so B's grant is sent when A's is acknowledged

What all jobs may hold together never exceeds the capacity, whatever messages are late, lost or
never answered. No I/O here, and no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


class LedgerError(ValueError):
    """Something was said of a grant that cannot be; the ledger is as it was."""


@dataclass(frozen=True)
class Grant:
    """What a job is told.

    Attributes:
        job: its name.
        serial: its number among the job's, from 1 on.
        budget_bytes: what the job may hold from now on.
        link_share: the part of the link's speed that its copies have.
    """

    job: str
    serial: int
    budget_bytes: int
    link_share: float


@dataclass
class _Account:
    held_bytes: int = 0  # as acknowledged
    sent: dict[int, int] = field(default_factory=dict)  # not acknowledged, by serial
    serial: int = 0
    granted_bytes: int = 0  # by the last grant
    link_share: float = 1.0
    target_bytes: int = 0
    target_link_share: float = 1.0
    in_touch: bool = True

    @property
    def most_bytes(self) -> int:
        return max(self.held_bytes, *self.sent.values(), 0)


class Ledger:
    """The accounts of all jobs on one device.

    Args:
        capacity_bytes: What they may hold together.
    """

    def __init__(self, capacity_bytes: int) -> None:
        if capacity_bytes <= 0:
            raise ValueError(f"a device of {capacity_bytes} bytes has nothing to give out")
        self.capacity_bytes = capacity_bytes
        self._accounts: dict[str, _Account] = {}

    # Who there is.

    @property
    def jobs(self) -> tuple[str, ...]:
        """By the time of joining."""
        return tuple(self._accounts)

    @property
    def free_bytes(self) -> int:
        """What nobody may be holding."""
        return self.capacity_bytes - sum(a.most_bytes for a in self._accounts.values())

    def held_bytes(self, job: str) -> int:
        """The most that a job may be holding now."""
        return self._account(job).most_bytes

    def granted_bytes(self, job: str) -> int:
        """What its last grant was; 0: it has had none."""
        return self._account(job).granted_bytes

    def link_share(self, job: str) -> float:
        """What its last grant said of the link."""
        return self._account(job).link_share

    def is_in_touch(self, job: str) -> bool:
        """Whether it can be told something."""
        return self._account(job).in_touch

    def is_short(self, job: str) -> bool:
        """Whether its last grant was less than its target."""
        account = self._account(job)
        return account.in_touch and account.granted_bytes < account.target_bytes

    def is_settled(self, job: str) -> bool:
        """Whether it has its target, and has said so."""
        account = self._account(job)
        return not account.sent and account.held_bytes == account.target_bytes

    # Coming and going.

    def open(self, job: str) -> None:
        """A job joins; it holds nothing yet.

        Raises:
            LedgerError: There is one of that name.
        """
        if job in self._accounts:
            raise LedgerError(f"there is a job {job!r} already")
        self._accounts[job] = _Account()

    def adopt(self, job: str, held_bytes: int) -> None:
        """A job that an earlier ledger had is out of touch, and may hold so much.

        Raises:
            LedgerError: There is one of that name, or no room for what it holds.
        """
        if not 0 <= held_bytes <= self.free_bytes:
            raise LedgerError(
                f"job {job!r} may hold {held_bytes} bytes, and only {self.free_bytes} of "
                f"{self.capacity_bytes} are free"
            )
        self.open(job)
        account = self._accounts[job]
        account.held_bytes = account.granted_bytes = account.target_bytes = held_bytes
        account.in_touch = False

    def lose_touch(self, job: str) -> None:
        """Nothing can be sent to a job for now; what it may hold is kept for it."""
        account = self._account(job)
        account.in_touch = False
        account.target_bytes = account.most_bytes

    def resume(self, job: str, held_bytes: int) -> None:
        """A job is back, and says what it holds.

        Raises:
            LedgerError: It is in touch, or was never granted that.
        """
        account = self._account(job)
        if account.in_touch:
            raise LedgerError(f"job {job!r} is in touch already")
        if held_bytes not in (account.held_bytes, *account.sent.values()):
            raise LedgerError(
                f"job {job!r} says that it holds {held_bytes} bytes, which it was never granted"
            )
        account.held_bytes = account.granted_bytes = account.target_bytes = held_bytes
        account.sent.clear()
        account.in_touch = True

    def close(self, job: str) -> None:
        """A job is gone for certain, with all that it held."""
        self._account(job)
        del self._accounts[job]

    # Grants.

    def aim(self, targets: Mapping[str, int], link_shares: Mapping[str, float]) -> None:
        """Says what each job is to have, as soon as there is room.

        Args:
            targets: Bytes, by job. Jobs that are not in it, or out of touch, keep what they have;
                if that is nothing, they wait.
            link_shares: Parts of the link's speed, by job; others keep theirs.

        Raises:
            LedgerError: There is no such job, or together they are beyond the capacity.
        """
        wanted = {job: account.most_bytes for job, account in self._accounts.items()}
        for job, target_bytes in targets.items():
            if target_bytes < 0:
                raise LedgerError(f"job {job!r} cannot have {target_bytes} bytes")
            if self._account(job).in_touch:
                wanted[job] = target_bytes
        if sum(wanted.values()) > self.capacity_bytes:
            raise LedgerError(
                f"targets of {sum(wanted.values())} bytes are beyond {self.capacity_bytes}"
            )
        for job, target_bytes in wanted.items():
            account = self._accounts[job]
            account.target_bytes = target_bytes
            account.target_link_share = link_shares.get(job, account.target_link_share)

    def due(self, partial_from: Mapping[str, int] | None = None) -> list[Grant]:
        """The grants that can be sent now; they count as sent.

        Args:
            partial_from: Jobs that do not go on waiting for all of their target: they get what
                there is, if it is so much in all.
        """
        grants: list[Grant] = []
        shrinking = [j for j, a in self._accounts.items() if a.target_bytes <= a.most_bytes]
        growing = [j for j, a in self._accounts.items() if a.target_bytes > a.most_bytes]
        for job in (*shrinking, *growing):
            account = self._accounts[job]
            if not account.in_touch or account.target_bytes == 0:
                continue
            budget_bytes = min(account.target_bytes, account.most_bytes + self.free_bytes)
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
        """A job is within a grant, and so has done with those before it.

        Raises:
            LedgerError: It was never sent, or is acknowledged already.
        """
        account = self._account(job)
        if serial not in account.sent:
            raise LedgerError(f"job {job!r} acknowledges grant {serial}, which it was never sent")
        account.held_bytes = account.sent[serial]
        for earlier in [each for each in account.sent if each <= serial]:
            del account.sent[earlier]

    def decline(self, job: str, serial: int) -> None:
        """A job cannot do with a grant that shrinks, and goes on with what it has acknowledged.

        Raises:
            LedgerError: It was never sent that, or does not have more than that.
        """
        account = self._account(job)
        if serial not in account.sent:
            raise LedgerError(f"job {job!r} declines grant {serial}, which it was never sent")
        if account.sent[serial] >= account.held_bytes:
            raise LedgerError(f"job {job!r} declines grant {serial}, which takes nothing from it")
        for earlier in [each for each in account.sent if each <= serial]:
            del account.sent[earlier]
        if not account.sent:
            account.granted_bytes = account.target_bytes = account.held_bytes

    def check(self, jobs: Iterable[str] | None = None) -> None:
        """Whether the books are in order.

        Args:
            jobs: Those that there must be. None: any.

        Raises:
            AssertionError: They are not.
        """
        held = {job: account.most_bytes for job, account in self._accounts.items()}
        assert all(each >= 0 for each in held.values()), held
        assert sum(held.values()) <= self.capacity_bytes, held
        assert self.free_bytes == self.capacity_bytes - sum(held.values())
        assert jobs is None or set(jobs) == set(held), (jobs, held)

    def _account(self, job: str) -> _Account:
        account = self._accounts.get(job)
        if account is None:
            raise LedgerError(f"there is no job {job!r}")
        return account
