"""What is stored of a command with secrets as a dead letter."""

import json
from typing import Any

from sandherd.bus.consumers.secret_commands import payload_without_values


def stored(**spec: Any) -> dict[str, Any]:
    """The spec of a command, as it is stored."""
    payload = json.dumps({"type": "task.submit", "subject": "t", "data": {"task": "t", "spec": spec}}).encode()
    found: dict[str, Any] = json.loads(payload_without_values(payload))["data"]["spec"]
    return found


def test_secret_that_begins_with_another_one_is_removed_completely() -> None:
    """Also if the shorter one has the first name; otherwise the end of the longer one would be stored."""
    env = {"A": "tok-1234", "B": "tok-12345678-long"}
    found = stored(text="use tok-12345678-long, not tok-1234", env=env, secret_env=["A", "B"])
    assert found["text"] == "use [redacted], not [redacte"
    assert found["env"] == {}


def test_short_secret_is_removed() -> None:
    """Elsewhere it is text; but a dead letter is stored for a long time."""
    assert stored(text="pin: 42x", env={"A": "42"}, secret_env=["A"])["text"] == "pin: [rx"


def test_secret_in_a_key_is_removed() -> None:
    """As in `harness`, whose options have keys of the user; fields of the spec retain their names."""
    harness = {"name": "claude", "mcp_servers": {"hunter2-key": {"env": {"hunter2-key": "x"}}}}
    found = stored(harness=harness, env={"A": "hunter2-key", "B": "text"}, secret_env=["A", "B"], text="text")
    assert "hunter2" not in json.dumps(found)
    assert found["text"] == "[red"


def test_command_without_values_of_secrets_is_stored_unchanged() -> None:
    """Its files are stored, too."""
    payload = json.dumps({"data": {"spec": {"text": "t", "files": {"a": "b"}, "secret_env": []}}}).encode()
    assert payload_without_values(payload) is payload
