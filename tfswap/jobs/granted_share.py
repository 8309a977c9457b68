"""GrantedShare: a job's current share of a device, and the protocol that installs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class GrantedShare:
    """The share of a device that a broker grants to a job.

    Attributes:
        budget_bytes: Maximum memory of the job.
        link_share: Fraction of the link's bandwidth for the job's copies.
        device: The broker's name of the device.
        device_bytes: Maximum memory of all jobs together.
        jobs: Number of jobs, including this one.
    """

    budget_bytes: int
    link_share: float
    device: str
    device_bytes: int
    jobs: int


class Holdings(Protocol):
    """Installs shares between a job's steps."""

    def in_use_bytes(self) -> int:
        """Return the memory that the job uses now."""

    def change(self, share: GrantedShare) -> int | None:
        """Install a share.

        Returns:
            None on success: the job uses no more than the share. Otherwise the least budget that
            the job needs; the previous share is still installed.
        """
