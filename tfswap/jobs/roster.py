"""Roster: the jobs of a broker, with the lease and the account of each.

No messages here: who says what to whom, and when, is the broker's.
"""

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
    """Who is there, what each asked for, and what is written down of what it holds.

    Args:
        ledger: Who holds what.
        leases: Of the jobs.
        weights: Of jobs by name, whatever they ask for.
        minima: Likewise, in bytes.
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

    def check(self) -> None:
        """Fails unless the ledger's accounts are those of the members, and hold; see there."""
        self._ledger.check(self._members)

    # Who comes and goes.

    def adopt(self) -> Iterator[Member]:
        """Counts what jobs hold that an earlier broker had.

        Yields:
            Each of them, as it is known.

        Raises:
            SocketRefused: A lease does not say what its job may hold.
            ValueError: They hold more than there is.
        """
        capacity_bytes = self._ledger.capacity_bytes
        held_bytes = 0
        for name, pid, record in self._leases.held():
            held_bytes += record.held_bytes
            if held_bytes > capacity_bytes:
                raise ValueError(
                    f"jobs of an earlier broker that still run hold {readable_bytes(held_bytes)} "
                    f"or more, and the budget is {readable_bytes(capacity_bytes)}: give "
                    f"that much, or end process {pid} ({record.name}) first"
                )
            self._ledger.adopt(name, record.held_bytes)
            self._members[name] = member = Member(name, record, pid=pid)
            yield member

    def apply(self, hello: Message) -> Member:
        """Makes a lease for a job that is no member yet: it is to lock that first.

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

    def enter(self, member: Member) -> None:
        """Has a job whose lease is locked be a member, with an account.

        Raises:
            LedgerError: It has one already.
        """
        self._ledger.open(member.lease)
        self._members[member.lease] = member

    def known(self, lease: str, token: str) -> Member | None:
        """Whose lease that is, if the token is the one that came with it."""
        member = self._members.get(lease)
        if member is None or not secrets.compare_digest(member.record.token, token):
            return None
        return member

    def strike(self, member: Member) -> int:
        """Closes a job's account and removes its lease; answers the bytes that are free by that."""
        held_bytes = self._ledger.held_bytes(member.lease)
        self._ledger.close(member.lease)
        del self._members[member.lease]
        self._leases.remove(member.lease)
        return held_bytes

    # What they hold, and want.

    def write_record(self, member: Member) -> None:
        """Writes into a job's lease what it may hold by now.

        Raises:
            OSError: It cannot be written.
        """
        held_bytes = self._ledger.held_bytes(member.lease)
        if member.record.held_bytes != held_bytes:
            member.record = dataclasses.replace(member.record, held_bytes=held_bytes)
            self._leases.write(member.lease, member.record)

    def claims(self, now_s: float) -> list[JobClaim]:
        """Of the jobs whose shares can be changed, which are those in touch."""
        claims = []
        for lease, member in self._members.items():
            if not self._ledger.is_in_touch(lease):
                continue
            record = member.record
            declined_bytes, until_s = member.declined
            least_bytes = declined_bytes if now_s < until_s else 0
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
        """What there is beside that which jobs out of touch hold."""
        kept_bytes = sum(
            self._ledger.held_bytes(lease)
            for lease in self._members
            if not self._ledger.is_in_touch(lease)
        )
        return self._ledger.capacity_bytes - kept_bytes

    def who_holds_what(self) -> str:
        """In words."""
        held = [
            f"{member.title} holds {readable_bytes(self._ledger.held_bytes(lease))}"
            + ("" if self._ledger.is_in_touch(lease) else " and is out of touch")
            for lease, member in self._members.items()
            if self._ledger.held_bytes(lease)
        ]
        return "; ".join(held) or "nobody holds anything"
