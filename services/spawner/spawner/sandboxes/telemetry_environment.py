"""Variables that make an agent export its own telemetry, if sandboxes may reach a collector."""

from typing import Final

from spawner.sandboxes.sandbox_record import SandboxRecord

_ALWAYS: Final = {
    "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    "OTEL_TRACES_EXPORTER": "otlp",
    "OTEL_METRICS_EXPORTER": "otlp",
    "OTEL_LOGS_EXPORTER": "otlp",
    # Without the first the Claude CLI exports nothing; without the second it exports no spans.
    "CLAUDE_CODE_ENABLE_TELEMETRY": "1",
    "CLAUDE_CODE_ENHANCED_TELEMETRY_BETA": "1",
}


def variables(endpoint: str | None, sandbox: SandboxRecord) -> dict[str, str]:
    """OpenTelemetry's standard variables; none without a collector for sandboxes.

    By default agents omit the content of prompts and tool calls, unless a task's variables request it.
    """
    if endpoint is None:
        return {}
    about = {"sandherd.project": sandbox.project, "sandherd.sandbox": sandbox.sandbox, "sandherd.task": sandbox.task}
    attributes = ",".join(f"{name}={value}" for name, value in about.items() if value)
    return {**_ALWAYS, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_RESOURCE_ATTRIBUTES": attributes}
