"""A reply has a result or an error: the models and the published schemas refuse both, and neither."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import ValidationError

from sandherd.contracts.requests import REQUESTS
from sandherd.contracts.schemas import json_schemas, reply_model

REPLIES = Path(__file__).parents[2] / "libs" / "sandherd" / "contracts" / "golden" / "v1" / "replies"


def is_valid(name: str, document: Any) -> bool:
    """Whether the schema accepts it. Fails unless the model agrees."""
    accepted = jsonschema.Draft202012Validator(json_schemas()[f"{name}.reply"]).is_valid(document)
    try:
        reply_model(name).model_validate_json(json.dumps(document), strict=True)
    except ValidationError:
        assert not accepted
    else:
        assert accepted
    return accepted


@pytest.mark.parametrize("name", REQUESTS)
def test_a_reply_has_exactly_one_of_result_and_error(name: str) -> None:
    """Each of the two alone is valid; both, and neither, are not."""
    result = json.loads((REPLIES / f"{name}.json").read_bytes())
    error = {"error": {"code": "not_found", "message": "there is none"}}
    assert is_valid(name, result)
    assert is_valid(name, error)
    assert not is_valid(name, result | error)
    assert not is_valid(name, {})
    assert not is_valid(name, {"later": 1})


def test_null_is_neither() -> None:
    """No service sends null, and the schema refuses it."""
    schema = jsonschema.Draft202012Validator(json_schemas()["spawner.tasks.reply"])
    assert not schema.is_valid({"ok": None})
    assert not schema.is_valid({"ok": None, "error": {"code": "not_found", "message": "there is none"}})
