"""Validates the model's reply: a verdict counts only if the events that it cites exist. Pure."""

from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from monitor.assessment.assessment_request import AssessmentCase
from sandherd.contracts.events.monitor import AssessmentFailure, AssessmentVerdict


class ModelAnswer(BaseModel):
    """The model's answer: one of three verdicts, and the numbers of the records that show it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    verdict: AssessmentVerdict
    evidence: Annotated[list[int], Field(max_length=8)] = []


@dataclass(frozen=True, slots=True)
class Assessment:
    """A verdict with the events that it is based on, or the reason why there is no verdict."""

    verdict: AssessmentVerdict | None
    evidence: tuple[UUID, ...] = ()
    failure: AssessmentFailure | None = None
    tokens: int = 0
    """The tokens that the model has used, for its input and output."""
    through: int = 0
    """The source sequence of the last event that the verdict is based on."""


def validated_assessment(answer: ModelAnswer, case: AssessmentCase, tokens: int) -> Assessment:
    """The answer as an assessment. Without evidence, or with a record that does not exist, there is no verdict."""
    numbers = dict.fromkeys(answer.evidence)
    all_exist = all(1 <= number <= len(case.records) for number in numbers)
    if not all_exist or (not numbers and answer.verdict != "unsure"):
        return Assessment(None, failure="no_evidence", tokens=tokens)
    evidence = tuple(case.records[number - 1].event for number in numbers)
    return Assessment(answer.verdict, evidence, tokens=tokens, through=case.through)
