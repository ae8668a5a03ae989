"""An event in one readable line: when, what kind, and what was done; an edit with its diff below it."""

import json
import shlex
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Final

from sandherd.client.cli.colours import Paint
from sandherd.client.sequencing import Event, Missing
from sandherd.client.terminal_text import visible, visible_line

LONGEST: Final = 200
LONGEST_DIFF: Final = 200
"""Lines of a diff that are shown; the whole of it is in the event."""
_TYPE_WIDTH: Final = 24
_SHORT: Final = 80

_COLOURS: Final = {
    "agent.completed": "green",
    "task.completed": "green",
    "agent.failed": "red",
    "task.failed": "red",
    "task.rejected": "red",
    "sandbox.failed": "red",
    "sandbox.refused": "red",
    "task.retry_scheduled": "yellow",
    "task.timed_out": "yellow",
    "sandbox.paused": "yellow",
    "agent.approval_requested": "yellow",
    "agent.iteration_failed": "red",
    "agent.iteration_validated": "yellow",
    "agent.error": "red",
    "agent.stream_error": "red",
    "agent.tool_use": "cyan",
    "agent.tool_completed": "cyan",
    "agent.file_edited": "yellow",
    "agent.message": "bold",
    "agent.heartbeat": "dim",
}


def tell(event: Event, paint: Paint) -> Iterator[str]:
    """The lines of an event."""
    time = event.time.astimezone().strftime("%H:%M:%S.%f")[:-3]
    kind = f"{event.type:<{_TYPE_WIDTH}}"
    yield f"{paint(time, 'dim')}  {paint(kind, _COLOURS.get(event.type))} {what(event)}".rstrip()
    if event.type == "agent.file_edited":
        yield from diff(event.data.full_diff or event.data.diff_preview, paint)


def what(event: Event) -> str:
    """What was done, without its kind."""
    say = _SAYS.get(event.type)
    return shortened(say(event.data) if say is not None else _fields(event))


def shortened(text: str, most: int = LONGEST) -> str:
    """The text as one line of no more than `most` characters."""
    line = visible_line(text)
    return line if len(line) <= most else f"{line[: most - 1]}…"


def diff(text: str, paint: Paint) -> Iterator[str]:
    """A unified diff, indented."""
    lines = text.splitlines()
    for line in lines[:LONGEST_DIFF]:
        yield "    " + paint(visible(line), _diff_colour(line))
    if len(lines) > LONGEST_DIFF:
        yield f"    … {len(lines) - LONGEST_DIFF} more lines"


def gap(missing: Missing) -> str:
    """What could not be shown, in words."""
    if missing.last is None:
        return f"what {missing.source} said after number {missing.first - 1} is not known to be whole"
    if missing.first == missing.last:
        return f"event {missing.first} of {missing.source} could not be shown"
    return f"events {missing.first} to {missing.last} of {missing.source} could not be shown"


def edit(data: Any) -> str:
    """A change of a file in short."""
    name = f"{data.previous_path} → {data.file_path}" if data.previous_path else data.file_path
    return f"{data.change_type} {name} +{data.lines_added} −{data.lines_removed}"


def call(tool: str, given: Any) -> str:
    """A tool call in short: the tool, and what it was given."""
    inner = given if isinstance(given, str) else _only_value(given)
    return f"{tool}: {inner}" if inner else tool


def ending(data: Any) -> str:
    """How an agent ended."""
    parts = [getattr(data, "error", None)]
    parts.append(None if data.exit_code is None else f"exit status {data.exit_code}")
    parts.append(None if data.duration_seconds is None else f"{data.duration_seconds:.1f} s")
    parts.append(f"{data.files_changed} files changed" if data.files_changed else None)
    return ", ".join(part for part in parts if part)


def judged(data: Any) -> str:
    """What was found of an iteration's work, and why it is the last one."""
    found = "valid" if data.passed else f"not valid: {', '.join(data.errors)}"
    return f"iteration {data.iteration_num}: {found}" + (f"; {data.stop_reason}" if data.stop_reason else "")


def again(data: Any) -> str:
    """That a task is tried once more: why, and when."""
    who = f", asked for by {data.requested_by}" if data.requested_by else ""
    why = f"{data.error} ({data.error_type})" if data.error_type else data.error
    return f"attempt {data.attempt}: {why}; again from {clock(data.not_before)} on{who}"


def spawned(data: Any) -> str:
    """How a sandbox was made."""
    warm = ", from the pool" if data.warm else ""
    return f"{data.runtime} in {data.spawn_ms:.0f} ms, isolation {data.isolation or 'none'}{warm}"


def executed(data: Any) -> str:
    """How a command ended."""
    status = "" if data.exit_code is None else f" with status {data.exit_code}"
    return f"{data.state}{status} in {data.duration_ms:.0f} ms"


def notice(data: Any) -> str:
    """What an agent's program says of itself, without what is no single value: that it asks its model once more."""
    return " ".join(f"{name}={_short(value)}" for name, value in data.metadata.items() if _is_short(value))


def spent(data: Any) -> str:
    """What the model was given and gave, and what that cost."""
    tokens = f"{data.input_tokens} tokens in, {data.output_tokens} out, {data.cost_micro_usd / 1e6:.4f} $"
    return f"{data.model}: {tokens}" if data.model else tokens


def clock(at: datetime) -> str:
    """A moment, in local time."""
    return at.astimezone().strftime("%H:%M:%S")


def _only_value(given: Any) -> str:
    if isinstance(given, dict) and len(given) == 1:
        value = next(iter(given.values()))
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return json.dumps(given, ensure_ascii=False) if given else ""


def _diff_colour(line: str) -> str | None:
    if line.startswith(("+++", "---")):
        return "bold"
    return {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])


def _fields(event: Event) -> str:
    """The fields of an event that no line was written for."""
    data = event.data.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    data.pop("turn", None)
    return " ".join(f"{name}={_short(value)}" for name, value in data.items() if not isinstance(value, dict | list))


def _is_short(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, str) and len(value) <= _SHORT)


def _short(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)


_SAYS: Final[dict[str, Callable[[Any], str]]] = {
    "agent.started": lambda d: f"{d.sdk}: {d.task}",
    "agent.turn_started": lambda d: f"turn {d.turn}: {d.prompt_preview or ''}",
    "agent.turn_completed": lambda d: f"turn {d.turn}" + (f" in {d.duration_ms:.0f} ms" if d.duration_ms else ""),
    "agent.message": lambda d: d.content,
    "agent.thinking": lambda d: d.content,
    "agent.user_message": lambda d: d.content,
    "agent.system_message": notice,
    "agent.model_call_started": lambda _: "",
    "agent.model_call_completed": lambda d: f"in {d.duration_ms:.0f} ms" if d.duration_ms else "",
    "agent.usage": spent,
    "agent.message_injected": lambda d: f"{d.message_type} from {d.sender_id or 'somebody'}: {d.content}",
    "agent.tool_use": lambda d: call(d.tool, d.input),
    "agent.approval_requested": lambda d: f"{d.approval_id}: {call(d.tool, d.input)}",
    "agent.approval_withdrawn": lambda d: f"{d.approval_id}: {d.reason}",
    "agent.tool_completed": lambda d: f"{d.tool}" + (f" in {d.duration_ms:.0f} ms" if d.duration_ms else ""),
    "agent.tool_result": lambda d: ("error: " if d.is_error else "") + d.result,
    "agent.iteration_started": lambda d: f"iteration {d.iteration_num}: {d.prompt_preview or ''}",
    "agent.iteration_completed": lambda d: f"iteration {d.iteration_num}, {d.total_cost_micro_usd / 1e6:.4f} $ so far",
    "agent.iteration_failed": lambda d: f"iteration {d.iteration_num}: {d.error}",
    "agent.iteration_validated": judged,
    "agent.file_edited": edit,
    "agent.heartbeat": lambda d: f"{d.status}, {d.event_count} events, {d.spool_depth} not yet acknowledged",
    "agent.error": lambda d: d.error,
    "agent.completed": ending,
    "agent.failed": ending,
    "agent.shutdown": lambda d: d.reason,
    "task.submitted": lambda d: d.task,
    "task.assigned": lambda d: f"to {d.sandbox} after {d.waited_ms:.0f} ms",
    "task.running": lambda d: f"in {d.sandbox}, {d.started_ms:.0f} ms after it was submitted",
    "task.completed": lambda d: f"by {d.sandbox}",
    "task.failed": lambda d: f"{d.error} ({d.error_type})",
    "task.rejected": lambda d: d.reason,
    "task.retry_scheduled": again,
    "task.timed_out": lambda d: f"{'all of it' if d.whole_task else 'this attempt'} took over {d.limit_seconds:.0f} s",
    "task.cancelled": lambda d: d.reason,
    "sandbox.requested": lambda d: d.runtime + (f", until {clock(d.expires_at)}" if d.expires_at else ""),
    "sandbox.spawned": spawned,
    "sandbox.paused": lambda d: d.reason or "frozen as it is",
    "sandbox.resumed": lambda _: "it goes on",
    "sandbox.extended": lambda d: f"until {clock(d.expires_at)}",
    "sandbox.refused": lambda d: f"{d.command.partition('.')[2].replace('_', ' ')}: {d.reason}",
    "sandbox.failed": lambda d: f"{d.error} ({d.error_type})",
    "agent.exec_started": lambda d: f"$ {shlex.join(d.command)}",
    "agent.exec_completed": executed,
    "agent.file_uploaded": lambda d: f"{d.path}, {d.size} bytes",
    "agent.file_downloaded": lambda d: f"{d.path}, {d.size} bytes",
    "agent.server_started": lambda d: f"{d.kind}, start {d.start}",
    "agent.server_ready": lambda d: f"{d.kind} answers on port {d.port}, after {d.started_ms:.0f} ms",
    "agent.server_failed": lambda d: f"{d.kind}: {d.error}; {d.restarts_left} restarts left",
    "agent.server_stopped": lambda d: d.kind + (", by force" if d.forced else ""),
    "agent.work_saved": lambda d: f"{d.files} files for the next attempt" + (f"; {d.left_out}" if d.left_out else ""),
    "sandbox.stopping": lambda d: d.reason,
    "sandbox.terminated": lambda d: f"{d.reason}, after {d.lived_seconds:.1f} s",
    "message.delivered": lambda d: f"{d.message_id} in {d.delivery_ms:.1f} ms",
    "message.rejected": lambda d: f"{d.message_id}: {d.reason}",
    "approval.requested": lambda d: f"{d.approval_id}: {d.tool}" + (f", {d.reason}" if d.reason else ""),
    "approval.granted": lambda d: d.approval_id + (f" by {d.by}" if d.by else ""),
    "approval.denied": lambda d: (
        d.approval_id + (f" by {d.by}" if d.by else "") + (f": {d.reason}" if d.reason else "")
    ),
    "approval.expired": lambda d: f"{d.approval_id}: {d.outcome}" + (f", {d.reason}" if d.reason else ""),
    "monitor.intervention_decided": lambda d: f"{d.rule}: {d.step}: {d.message}",
}
