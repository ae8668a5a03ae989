"""The Conductor's settings."""

from dataclasses import dataclass
from typing import Final

from monitor.conductor.ignored_files import IgnoredFiles
from sandherd.contracts.states import NotificationKind
from sandherd.settings import Settings
from sandherd.settings.coordination import ConductorMode

MODES: Final[tuple[ConductorMode, ...]] = ("off", "report", "inform", "ask", "pause")


@dataclass(frozen=True, slots=True)
class ConductorPolicy:
    """The Conductor's settings."""

    mode: ConductorMode
    ignored: IgnoredFiles
    cooldown: float
    """Minimum seconds between two messages to an agent."""
    check_interval: float
    """Seconds between two checks for actions that become due without a change."""
    notifies: bool
    """Whether users are notified about severe findings."""

    @classmethod
    def of(cls, settings: Settings) -> "ConductorPolicy":
        """The policy that the settings select."""
        mode = settings.conductor
        notifies = MODES.index(mode) >= MODES.index("ask") and NotificationKind.COORDINATION in settings.notifications
        ignored = IgnoredFiles(settings.conductor_ignore)
        return cls(mode, ignored, settings.steering_cooldown, settings.check_interval, notifies)

    @property
    def informs(self) -> bool:
        """Whether agents get messages."""
        return MODES.index(self.mode) >= MODES.index("inform")

    @property
    def pauses(self) -> bool:
        """Whether the later sandbox of a severe finding is paused."""
        return self.mode == "pause"
