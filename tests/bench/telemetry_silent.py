"""event-ingest without telemetry: its counters count nothing, and it does not examine what agents publish."""

from event_ingest.agent_metrics import AgentMetrics
from event_ingest.main import main
from sandherd.telemetry.meters import Meters


def nothing(*_given: object, **_labels: object) -> None:
    """Do nothing in place of a counter."""


if __name__ == "__main__":
    for name in ("count", "set", "observe", "observe_all", "watch"):
        setattr(Meters, name, nothing)
    setattr(AgentMetrics, "record", nothing)  # noqa: B010  # mypy lets no method be assigned
    main()
