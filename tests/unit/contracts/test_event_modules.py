"""The modules of events are imported when they are needed, with the same result as if all were imported."""

import subprocess
import sys

from sandherd.client.events import target
from sandherd.contracts.events import EVENTS, event_model, events_of
from sandherd.contracts.events.base import types_with_state
from sandherd.contracts.events.task import TaskRejected
from sandherd.contracts.states import SANDBOX_ENDED, TASK_ENDED, TaskState

ORDER = """
import sys
from sandherd.contracts.events import event_model
found = [event_model("task.completed"), event_model("approval.granted"), event_model("nonsense.x"), event_model("x")]
print([one and one.__name__ for one in found])
print(sorted(name.rpartition(".")[2] for name in sys.modules if name.startswith("sandherd.contracts.events.")))
from sandherd.contracts.events import EVENTS
print(list(EVENTS))
"""


def test_every_type_is_found_without_the_others() -> None:
    """One lookup imports the modules of its domain only, and all types have one order, whatever was imported first."""
    done = subprocess.run([sys.executable, "-c", ORDER], capture_output=True, text=True, check=True)
    found, modules, order = done.stdout.splitlines()
    assert found == "['TaskCompleted', 'ApprovalGranted', None, None]"
    assert modules == "['base', 'message', 'summaries', 'task']"
    assert order == str(list(EVENTS))


def test_every_type_has_its_own_class() -> None:
    """Every domain is in the list: clients would not know another one."""
    assert {name: event_model(name) for name in EVENTS} == EVENTS
    modules = {model.__module__.rpartition(".")[2] for model in EVENTS.values()}
    assert {name for module in modules for name in events_of(module)} == EVENTS.keys()


def test_followers_know_the_types_of_all_modules() -> None:
    """What a follower derives from single modules is the same as from all."""
    assert {name for name, model in EVENTS.items() if model.terminal} == target.AGENT_ENDS
    assert tuple(sorted(name for name in EVENTS if name.startswith("task."))) == target.TASK_TYPES
    assert types_with_state([TaskState.PENDING], EVENTS) == target.TASK_RESTARTS
    assert types_with_state(TASK_ENDED, EVENTS) | {TaskRejected.type} == target.TASK_ENDS
    assert types_with_state(SANDBOX_ENDED, EVENTS) == target.SANDBOX_ENDS
    services = {name for name, model in EVENTS.items() if model.emitted_by in {"message-relay", "monitor"}} - {
        "webhook.disabled"  # about no sandbox
    }
    domains = {pattern.removesuffix("*") for pattern in target.SERVICE_TYPES}
    assert {name for name in EVENTS if name.startswith(tuple(domains))} == services
