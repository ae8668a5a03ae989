"""What one source (a sandbox, a project) may bring into a consumer, and who receives what is above that."""

from collections.abc import Callable
from dataclasses import dataclass

from sandherd.bus.dead_letters import DEFAULT_LIMIT, Suppressed
from sandherd.bus.intake import DEFAULT_RATES, INTAKE_BURST, IntakeRates
from sandherd.bus.rate_limit import rate_of
from sandherd.settings import Settings
from sandherd.telemetry.meters import Meters

Deferred = Callable[[str], None]
"""Called for each message that was returned for a later delivery, with the consumer's name."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a consumer."""

    rates: IntakeRates = DEFAULT_RATES
    dead_letters: int = DEFAULT_LIMIT
    suppressed: Suppressed | None = None
    deferred: Deferred | None = None


def source_limits(settings: Settings, meters: Meters) -> Limits:
    """The limits as they are set; what is beyond them is counted."""
    entity, project = settings.flood_messages, settings.flood_project_messages
    return Limits(
        rates=IntakeRates(entity=rate_of(entity, INTAKE_BURST), project=rate_of(project, INTAKE_BURST)),
        dead_letters=settings.dead_letters_per_minute,
        suppressed=lambda consumer, code: meters.count(
            "sandherd_dead_letters_dropped_total", consumer=consumer, code=code
        ),
        deferred=lambda consumer: meters.count("sandherd_deliveries_deferred_total", consumer=consumer),
    )
