"""Every operation of the client library is one of the HTTP API, or there is a reason why not."""

import inspect
import json
from pathlib import Path
from typing import Any, Final

import pytest
from pydantic import ValidationError

from gateway.routes.files import LimitedFile
from gateway.routes.herd import DecisionBody
from sandherd.client.errors import HerdError
from sandherd.client.herd import Herd
from sandherd.contracts.errors import Code

OPENAPI: Final = Path(__file__).parents[3] / "docs/openapi.json"
OPERATIONS: Final = {
    "project_overview": "overview",
    "compare": "comparison",
    "artifact": "download_artifact",
    "branch": "get_branch",
    "branch_diff": "download_artifact",
    "cancel": "cancel_task",
    "costs": "usage",
    "create": "create_sandbox",
    "create_schedule": "set_schedule",
    "deny": "decide_approval",
    "download": "download_file",
    "exec": "start_command",
    "execution": "command_state",
    "extend": "extend_sandbox",
    "files": "list_files",
    "find_artifact": "download_artifact",
    "follow": "stream_events",
    "grant": "decide_approval",
    "pause": "pause_sandbox",
    "project_view": "projects",
    "resume": "resume_sandbox",
    "retry": "retry_task",
    "runtime_logs": "runtime_log",
    "sandbox": "get_sandbox",
    "sandboxes": "list_sandboxes",
    "schedule": "get_schedule",
    "send": "send_message",
    "deliver": "send_message",
    "submit": "submit_task",
    "subscribe": "set_subscription",
    "task": "get_task",
    "tasks": "list_tasks",
    "terminate": "terminate_sandbox",
    "unsubscribe": "delete_subscription",
    "wait": "stream_sandbox",
    "write": "upload_file",
}
ABSENT: Final = {
    "agent_server": "its reply has the key of an agent's server, which only holders of a credential may have",
    "create_code": "signs in a browser of the user who has a credential",
    "cancel_all": "several requests of the client: cancel each task",
    "check": "a check by the client before it submits; the gateway does it, too",
    "connect": "is no operation",
    "create_project": "for operators of the herd: a token belongs to one project",
    "create_token": "a token must not create others",
    "fetch_branch": "writes into a git repository of the client; `download_artifact` has the bundle",
    "fetch_result": "writes files of the client; `download_artifact` has them",
    "fetch_start": "writes files of the client; `download_artifact` has them",
    "forward_port": "opens a port of the client's machine",
    "history_archives": "for operators of the herd: a token belongs to one project",
    "history_status": "for operators of the herd: a token belongs to one project",
    "hold_history": "for operators of the herd: a token belongs to one project",
    "overview": "several requests of the client: `tasks` with each state",
    "project": "is no operation",
    "prune": "for operators of the herd: a token belongs to one project",
    "receive": "fetches and acknowledges at the broker; over HTTP use `stream_events`",
    "release_history": "for operators of the herd: a token belongs to one project",
    "restore_history": "for operators of the herd: a token belongs to one project",
    "revoke_token": "a token must not revoke others",
    "session_of": "computed from events by the client",
    "set_budget": "for operators of the herd: a token belongs to one project",
    "set_project": "for operators of the herd: a token belongs to one project",
    "submit_batch": "several requests of the client: submit each task",
    "tokens": "a token must not see others",
    "upload": "reads files of the client; `upload_file` writes one",
    "upload_repository": "reads a git repository of the client",
    "upload_work": "reads files of the client",
    "verify_history": "for operators: it compares the database's own tables, and takes long",
    "wait_all": "several requests of the client: follow the stream",
}


def test_every_operation_of_the_client_is_in_the_api_or_has_a_reason() -> None:
    """A new method of `Herd` needs an operation of its name, or one in the table above, or a reason."""
    document: dict[str, Any] = json.loads(OPENAPI.read_text())
    existing = {one["operationId"] for path in document["paths"].values() for one in path.values()}
    methods = {name for name, _ in inspect.getmembers(Herd) if not name.startswith("_")}
    assert methods - ABSENT.keys() - OPERATIONS.keys() - existing == set()
    assert not OPERATIONS.keys() & ABSENT.keys()
    assert set(OPERATIONS.values()) <= existing
    assert not (ABSENT.keys() - {"overview"}) & existing


@pytest.mark.parametrize("value", [0, 1, "yes", "false", None])
def test_boolean_of_a_body_is_a_boolean(value: Any) -> None:
    """A value of another type is refused, and never taken as a decision."""
    with pytest.raises(ValidationError):
        DecisionBody.model_validate({"granted": value})
    assert DecisionBody.model_validate({"granted": False}).granted is False


def test_download_of_more_than_the_sandbox_has_announced_is_refused() -> None:
    """A file that is larger than its sandbox has reported takes no more space than is reserved."""
    with LimitedFile(4) as file:
        file.write(b"1234")
        with pytest.raises(HerdError) as refused:
            file.write(b"5")
    assert refused.value.problem.code is Code.TOO_LARGE
