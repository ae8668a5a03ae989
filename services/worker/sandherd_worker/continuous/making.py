"""Making the harness of an agent that goes round, out of one that does its task once."""

from datetime import timedelta
from typing import Final

from sandherd.contracts.commands import TaskSpec
from sandherd.contracts.continuous import Continuous
from sandherd.contracts.delivery import InboxMessage
from sandherd.contracts.names import new_name
from sandherd_worker.agents import Turned, environment, make_once
from sandherd_worker.assignment import Assignment
from sandherd_worker.continuous.hearing import Hearing
from sandherd_worker.continuous.rounds import Rounds
from sandherd_worker.continuous.runs import Runs
from sandherd_worker.continuous.telling import first_prompt, next_prompt
from sandherd_worker.continuous.turns import Turns
from sandherd_worker.continuous.validating import Place, Validator
from sandherd_worker.emitter import now
from sandherd_worker.harnesses.base import Harness, Voice
from sandherd_worker.parts import Parts

_COMMAND: Final = "command"
_LIFE: Final = timedelta(days=1)


def make_rounds(spec: TaskSpec, terms: Continuous, parts: Parts, voice: Voice, turned: Turned) -> Harness:
    """The harness of a task that is gone round for."""
    turns = Turns()
    hearing = Hearing(voice, terms.completion_signal, shown=spec.harness.kind == _COMMAND)

    async def on_turn(turn: int, working: bool) -> None:  # noqa: FBT001  # as the harness tells it
        turns.note(working=working)
        await turned(hearing.turn(turn), working or rounds.going)

    def make(iteration: int, feedback: str) -> Harness:
        return make_once(for_iteration(spec, terms, iteration, feedback), parts, hearing, on_turn)

    runs = Runs(make, lambda feedback: _message(parts.who, next_prompt(terms, feedback)), hearing, turns)
    rounds = Rounds(
        terms,
        runs,
        hearing,
        _validator(spec, terms, parts, voice),
        voice,
        preview=spec.text,
        lingers=spec.linger_seconds > 0,
        rested=lambda turn: turned(turn, False),
    )
    return rounds


def for_iteration(spec: TaskSpec, terms: Continuous, iteration: int, feedback: str) -> TaskSpec:
    """The task as a new run of the agent is given it: a program by variables, any other agent in words."""
    told = {"SANDHERD_ITERATION": str(iteration), "SANDHERD_FEEDBACK": feedback}
    if terms.completion_signal is not None:
        told["SANDHERD_COMPLETION_SIGNAL"] = terms.completion_signal
    text = spec.text if spec.harness.kind == _COMMAND else first_prompt(spec.text, terms, feedback)
    return spec.model_copy(update={"env": {**spec.env, **told}, "text": text})


def _validator(spec: TaskSpec, terms: Continuous, parts: Parts, voice: Voice) -> Validator | None:
    if terms.validation is None:
        return None
    place = Place(
        work_dir=parts.who.work_dir,
        environment=environment(spec, parts.who),
        voice=voice,
        redactor=parts.emitter.redactor,
        reaper=parts.reaper,
        families=parts.families,
    )
    return Validator(terms.validation, place)


def _message(who: Assignment, content: str) -> InboxMessage:
    """What the worker itself says to an agent."""
    return InboxMessage(
        message=new_name("msg"),
        project=who.project,
        sandbox=who.sandbox,
        content=content,
        message_type="user_message",
        sent_at=now(),
        expires_at=now() + _LIFE,
    )
