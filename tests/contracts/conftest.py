"""The golden examples, one per type, as they were published."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import sandherd.contracts

GOLDEN = Path(sandherd.contracts.__file__).parent / "golden" / "v1"
FOLDERS = {"event": "events", "command": "commands", "question": "requests", "reply": "replies"}


@dataclass(frozen=True)
class Golden:
    """One example: its type, and its bytes."""

    name: str
    document: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.document)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test once with each example of the kind that one of its parameters names."""
    for parameter, folder in FOLDERS.items():
        if parameter in metafunc.fixturenames:
            examples = [Golden(path.stem, path.read_bytes()) for path in sorted((GOLDEN / folder).glob("*.json"))]
            metafunc.parametrize(parameter, examples, ids=[example.name for example in examples])


@pytest.fixture
def golden() -> Path:
    return GOLDEN
