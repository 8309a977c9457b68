"""ShareWatch: what a training does when others share its device, or have ended."""

from __future__ import annotations

import enum

from tfswap.io.amounts import readable_bytes
from tfswap.training.log import TrainingLog
from tfswap.training.managed_devices import ManagedDevices
from tfswap.training.pass_session import PassSession
from tfswap.training.swap_session import SwapSession

# More than so many times the budget that was planned for is worth another plan.
_WORTH_A_PLAN = 1.05
# That a new share is tried for: in the first, variables that were no training's are replaced.
_STEPS_TO_PLAN = 2


class News(enum.Enum):
    """What has become of a training's share since its last step."""

    NONE = "none"
    CHANGED = "changed"
    LESS = "less"  # than its plan needs
    PLAN = "plan"  # it is as it was for some steps: a plan is to be made for it


class ShareWatch:
    """Looks, before each step, at what a training has of the device.

    Args:
        shared: Has the device, or a share of it.
        devices: As the training sees them.
        session: Its graphs are told apart from those of others.
        voice: Says things.
    """

    def __init__(
        self, shared: SwapSession, devices: ManagedDevices, session: PassSession, voice: TrainingLog
    ) -> None:
        self._shared = shared
        self._devices = devices
        self._session = session
        self._voice = voice
        self._plan_in = -1  # steps; below 0: not at all
        self._version = shared.version  # first: it may change meanwhile
        self._is_alone = not devices.job
        session.belongs_to(devices.job)

    def validation_begins(self) -> None:
        """Has its ops be this training's, whose share may have come since the last step."""
        self._session.belongs_to(self._devices.job)

    def look(self, planned_bytes: int) -> News:
        """Takes notice of changes.

        Args:
            planned_bytes: The budget that the plan was made for; 0: there is none.
        """
        version = self._shared.version
        if version == self._version:
            self._plan_in = max(self._plan_in - 1, -1)
            return News.PLAN if self._plan_in == 0 else News.NONE
        self._version = version
        was_alone, is_alone = self._is_alone, not self._devices.job
        self._is_alone = is_alone
        self._session.belongs_to(self._devices.job)
        if was_alone != is_alone:
            self._voice.note(self.said())
        if not planned_bytes:
            return News.CHANGED
        less = not self._devices.suffice_for(planned_bytes)
        if less or is_alone or self._devices.budget_bytes > _WORTH_A_PLAN * planned_bytes:
            self._plan_in = _STEPS_TO_PLAN
        return News.LESS if less else News.CHANGED

    def planned(self) -> None:
        """There is a plan for what it has now."""
        self._plan_in = -1

    def said(self) -> str:
        """How things are."""
        sharing = self._shared.state()["sharing"]
        if sharing == 1:
            return "this training has the device for itself again"
        return (
            f"{sharing} trainings share the device: up to "
            f"{readable_bytes(self._devices.budget_bytes)} of "
            f"{readable_bytes(self._devices.total_bytes)} are for this one"
        )
