"""A worker's log of an error has its place, and never the values."""

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


def test_error_log_names_places_but_no_values() -> None:
    """The texts of the error and its cause, which may quote a secret, are not logged."""
    with pytest.raises(RuntimeError) as broke:
        _break("hunter2-hunter2")
    place = logs.error_fields(broke.value)
    assert (place["error"], place["cause"]) == ("RuntimeError", "ValidationError")
    assert place["places"][-1].endswith("_break")
    assert "hunter2" not in json.dumps(place)


def test_worker_never_logs_exception_texts() -> None:
    """No module logs with `exc_info`: an exception may quote a secret, and the log of the worker is not redacted."""
    sources = Path(sandherd_worker.__path__[0]).rglob("*.py")
    assert [path.name for path in sources if "exc_info" in path.read_text()] == []
