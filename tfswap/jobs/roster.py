"""Roster: the jobs of a broker, with their leases and accounts. It sends no messages."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Iterator, Mapping

from tfswap.io.amounts import readable_bytes
from tfswap.jobs.joint_division import JobClaim
from tfswap.jobs.lease import LeaseRecord
from tfswap.jobs.lease_folder import LeaseFolder
from tfswap.jobs.ledger import Ledger
from tfswap.jobs.member import Member
from tfswap.jobs.messages import Message


class Roster:
    """The members of a broker, by lease.

    Args:
        ledger: The accounts of the jobs.
        leases: The leases of the jobs.
        weights: Weights by job name, which override those that jobs request.
        minima: Minimum bytes by job name, which raise those that jobs request.
    """

    def __init__(
        self,
        ledger: Ledger,
        leases: LeaseFolder,
        weights: Mapping[str, float],
        minima: Mapping[str, int],
    ) -> None:
        self._ledger = ledger
        self._leases = leases
        self._weights, self._minima = dict(weights), dict(minima)
        self._members: dict[str, Member] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __contains__(self, lease: str) -> bool:
        return lease in self._members

    def __getitem__(self, lease: str) -> Member:
        return self._members[lease]

    def check_invariants(self) -> None:
        """Check that each member has an account, and that the ledger is consistent."""
        self._ledger.check_invariants(self._members)

    # Jobs that join and leave.

    def adopt(self) -> Iterator[Member]:
        """Add the running jobs of an earlier broker, with the memory that they hold.

        Yields:
            Each of these jobs.

        Raises:
            SocketRefused: A lease does not record how much memory its job holds.
            ValueError: The jobs hold more than the capacity.
        """
        capacity_bytes = self._ledger.capacity_bytes
        held_bytes = 0
        for name, pid, record in self._leases.held():
            held_bytes += record.held_bytes
            if held_bytes > capacity_bytes:
                raise ValueError(
                    f"running jobs of an earlier broker hold at least "
                    f"{readable_bytes(held_bytes)}, more than the budget of "
                    f"{readable_bytes(capacity_bytes)}: raise the budget, or end process {pid} "
                    f"({record.name}) first"
                )
            self._ledger.adopt(name, record.held_bytes)
            self._members[name] = member = Member(name, record, pid=pid)
            yield member

    def create(self, hello: Message) -> Member:
        """Create a member with a lease, which joins when its job has locked the lease.

        Raises:
            OSError: The lease cannot be written.
        """
        name: str = hello["name"]
        weight: float = hello["weight"]
        wanted_bytes = min(hello["wanted_bytes"] or 1 << 62, self._ledger.capacity_bytes)
        minimum_bytes = max(hello["minimum_bytes"], self._minima.get(name, 0))
        record = LeaseRecord(
            name,
            secrets.token_hex(32),
            0,
            self._weights.get(name, weight),
            minimum_bytes,
            max(wanted_bytes, minimum_bytes),
        )
        return Member(self._leases.new(record), record)

    def add(self, member: Member) -> None:
        """Add a member whose lease is locked, with an account.

        Raises:
            LedgerError: It has an account already.
        """
        self._ledger.add(member.lease)
        self._members[member.lease] = member

    def find(self, lease: str, token: str) -> Member | None:
        """Return the member with this lease if the token is valid, else None."""
        member = self._members.get(lease)
        if member is None or not secrets.compare_digest(member.record.token, token):
            return None
        return member

    def remove(self, member: Member) -> int:
        """Remove a member with its account and lease, and return the freed bytes."""
        held_bytes = self._ledger.held_bytes(member.lease)
        self._ledger.remove(member.lease)
        del self._members[member.lease]
        self._leases.remove(member.lease)
        return held_bytes

    # Memory of the members.

    def write_record(self, member: Member) -> None:
        """Record in a member's lease how much memory it may hold now.

        Raises:
            OSError: The lease cannot be written.
        """
        held_bytes = self._ledger.held_bytes(member.lease)
        if member.record.held_bytes != held_bytes:
            member.record = dataclasses.replace(member.record, held_bytes=held_bytes)
            self._leases.write(member.lease, member.record)

    def claims(self, now_s: float) -> list[JobClaim]:
        """Return the claims of the connected jobs, whose shares can change."""
        claims = []
        for lease, member in self._members.items():
            if not self._ledger.is_connected(lease):
                continue
            record = member.record
            least_bytes = member.declined_bytes if now_s < member.declined_until_s else 0
            claims.append(
                JobClaim(
                    lease,
                    max(record.minimum_bytes, least_bytes, 1),
                    record.wanted_bytes,
                    record.weight,
                    self._ledger.held_bytes(lease),
                    member.trace,
                    self._ledger.link_share(lease),
                )
            )
        return claims

    @property
    def divisible_bytes(self) -> int:
        """The capacity without the memory of disconnected jobs."""
        kept_bytes = sum(
            self._ledger.held_bytes(lease)
            for lease in self._members
            if not self._ledger.is_connected(lease)
        )
        return self._ledger.capacity_bytes - kept_bytes

    def describe_use(self) -> str:
        """Describe the memory that each job holds, for messages."""
        held = [
            f"{member.title} holds {readable_bytes(self._ledger.held_bytes(lease))}"
            + ("" if self._ledger.is_connected(lease) else " (disconnected)")
            for lease, member in self._members.items()
            if self._ledger.held_bytes(lease)
        ]
        return "; ".join(held) or "no job holds memory"
