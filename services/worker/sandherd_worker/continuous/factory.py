"""Creates the harness of an agent that works in iterations, from the harness of a single run."""

from datetime import timedelta
from typing import Final

from sandherd.contracts.commands import TaskSpec
from sandherd.contracts.continuous import Continuous
from sandherd.contracts.inbox_messages import InboxMessage
from sandherd.contracts.names import new_name
from sandherd_worker.assignment import Assignment
from sandherd_worker.continuous.iteration_events import IterationEvents
from sandherd_worker.continuous.iterations import IterationLoop
from sandherd_worker.continuous.prompts import first_prompt, next_prompt
from sandherd_worker.continuous.runs import IterationRuns, IterationTurns
from sandherd_worker.continuous.validation import ValidationContext, Validator
from sandherd_worker.emitter import now
from sandherd_worker.harness_factory import Turned, environment, make_once
from sandherd_worker.harnesses.base import EventSink, Harness
from sandherd_worker.harnesses.driver_task import IterationPrompt
from sandherd_worker.worker_resources import WorkerResources

_COMMAND: Final = "command"
_MESSAGE_LIFETIME: Final = timedelta(days=1)


def make_iterating_harness(
    spec: TaskSpec, terms: Continuous, resources: WorkerResources, sink: EventSink, turned: Turned
) -> Harness:
    """The harness of a task with iterations."""
    turns = IterationTurns()
    iteration_events = IterationEvents(sink, terms.completion_signal, search_output=spec.harness.kind == _COMMAND)

    async def on_turn(turn: int, working: bool) -> None:  # noqa: FBT001  # the harness's signature
        turns.note(working=working)
        await turned(iteration_events.turn(turn), working or iteration_loop.is_running)

    def make(iteration: int, feedback: str) -> Harness:
        return make_once(for_iteration(spec, terms, iteration, feedback), resources, iteration_events, on_turn)

    runs = IterationRuns(
        make, lambda feedback: _message(resources.assignment, next_prompt(terms, feedback)), iteration_events, turns
    )
    iteration_loop = IterationLoop(
        terms,
        runs,
        iteration_events,
        _validator(spec, terms, resources, sink),
        sink,
        preview=spec.text,
        lingers=spec.linger_seconds > 0,
        rested=lambda turn: turned(turn, False),
    )
    return iteration_loop


def for_iteration(spec: TaskSpec, terms: Continuous, iteration: int, feedback: str) -> TaskSpec:
    """The task for a new run: with feedback and completion signal as variables and, for an agent, in the prompt."""
    variables = {"SANDHERD_ITERATION": str(iteration), "SANDHERD_FEEDBACK": feedback}
    if terms.completion_signal is not None:
        variables["SANDHERD_COMPLETION_SIGNAL"] = terms.completion_signal
    text = spec.text if spec.harness.kind == _COMMAND else first_prompt(spec.text, terms, feedback)
    return spec.model_copy(update={"env": {**spec.env, **variables}, "text": text})


def _validator(spec: TaskSpec, terms: Continuous, resources: WorkerResources, sink: EventSink) -> Validator | None:
    if terms.validation is None:
        return None
    context = ValidationContext(
        work_dir=resources.assignment.work_dir,
        environment=environment(spec, resources.assignment),
        sink=sink,
        redactor=resources.emitter.redactor,
        reaper=resources.reaper,
        ownership=resources.ownership,
    )
    return Validator(terms.validation, context)


def _message(assignment: Assignment, content: str) -> InboxMessage:
    """A message from the worker itself to the agent."""
    return IterationPrompt(
        message=new_name("msg"),
        project=assignment.project,
        sandbox=assignment.sandbox,
        content=content,
        message_type="user_message",
        sent_at=now(),
        expires_at=now() + _MESSAGE_LIFETIME,
    )
