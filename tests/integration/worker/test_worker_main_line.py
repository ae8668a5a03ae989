"""The main line of a worker, against a real broker: start, work, publish, end."""

from typing import Any


async def test_command_is_reported_from_start_to_end(sandbox: Any) -> None:
    """A program runs in the work tree; its events are in the stream in sequence; the worker exits with 0."""
    sandbox.task("echo hello; echo 'print(1)' > a.py")
    assert await sandbox.run() == 0, sandbox.log.read_text()
    events = await sandbox.events()
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    types = [event.type.removeprefix("agent.") for event in events]
    # Heartbeats and scans come at their own times, and there are more of them the longer it takes.
    assert "heartbeat" in types
    assert types.index("file_edited") < types.index("completed")
    assert [one for one in types if one not in {"heartbeat", "file_edited"}] == [
        "started",
        "turn_started",
        "tool_use",
        "tool_result",
        "tool_completed",
        "turn_completed",
        "transcript_saved",
        "completed",
        "shutdown",
    ], types
    assert await sandbox.output() == "hello\n"
    assert not list((sandbox.state / "spool").glob("*.log"))
