"""What a worker logs of what broke: where it was, and never the values that it broke over."""

import json
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

import sandherd_worker
from sandherd.telemetry import logs


def _break(value: str) -> None:
    try:
        TypeAdapter(int).validate_python(value)
    except ValidationError as error:
        raise RuntimeError(f"{value} is none") from error


def test_a_log_says_where_and_never_with_what() -> None:
    """Neither the error's text nor its cause's, which quote what they were given: it may be a secret."""
    with pytest.raises(RuntimeError) as broke:
        _break("hunter2-hunter2")
    place = logs.place(broke.value)
    assert (place["error"], place["cause"]) == ("RuntimeError", "ValidationError")
    assert place["places"][-1].endswith("_break")
    assert "hunter2" not in json.dumps(place)


def test_no_part_of_a_worker_logs_an_error_with_its_text() -> None:
    """A worker handles secrets, and its log is not redacted."""
    sources = Path(sandherd_worker.__path__[0]).rglob("*.py")
    assert [path.name for path in sources if "exc_info" in path.read_text()] == []
