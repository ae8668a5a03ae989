"""Events that are published as they are: the documents are those of the way through each value, and have no secret."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sandherd.contracts.events import EVENTS, EventData
from sandherd.contracts.events.conversation import AgentMessage
from sandherd.contracts.events.tools import AgentToolResult, AgentToolUse
from sandherd_worker.emitter import Emitter, now
from sandherd_worker.redaction import Redactor
from sandherd_worker.spool import Spool
from tests.unit.worker.redaction_writers import CASES, redactor_of
from tests.unit.worker.test_worker_redaction import TOKENS
from tests.unit.worker.test_worker_redaction_traces import written

EXAMPLES: Final = Path(__file__).parents[3] / "libs" / "sandherd" / "contracts" / "golden" / "v1" / "events"
SECRET: Final = "correct horse battery staple"
SHARED: Final = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
TEXTS: Final = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=40),
    st.sampled_from(
        ["\0", "\x7f" * 9000, "\\u0000", "x" * 50_000, "x" * 50_001, "é" * 6000, "{" * 120, SECRET, "𐍈" * 90]
    ),
)
VALUES: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture
def make(spool: Spool, tmp_path: Path, assignment: Any) -> Callable[[Redactor], Emitter]:
    """An emitter whose clock stands still."""
    moment = now()
    return lambda redactor: Emitter(spool, assignment(tmp_path), redactor, lambda: moment)


def ways(emitter: Emitter, data: EventData) -> tuple[Any, Any]:
    """What is published of an event as a rule, and what by the way through each of its values.

    Of both without the ids, which are random.
    """
    emitter._changed_lately = 0
    try:
        slow: Any = shown(emitter._encode_changed(data, 1))
    except (ValueError, RecursionError) as error:
        slow = type(error).__name__ in emitter.encode(data, 1).data.model_dump_json()
        return True, slow
    return shown(emitter.encode(data, 1)), slow


def shown(encoded: Any) -> list[Any]:
    records = [*encoded.artifacts, encoded.record]
    plain = [re.sub(rb'"id":"[^"]+"|art-[0-9a-z]+', b"", record.payload) for record in records]
    return [encoded.data.type, *plain, *((record.kind, record.sequence, record.mark) for record in records)]


@pytest.mark.parametrize("kind", sorted(path.stem for path in EXAMPLES.iterdir()))
def test_every_type_has_the_same_document(make: Callable[[Redactor], Emitter], kind: str) -> None:
    """Byte for byte, with all its fields and with the required ones."""
    fields = json.loads((EXAMPLES / f"{kind}.json").read_text())["data"]
    emitter = make(redactor_of(SECRET))
    required = {name for name, info in EVENTS[kind].model_fields.items() if info.is_required()}
    for chosen in (fields, {**fields, "artifacts": None}, {name: fields[name] for name in required}):
        fast, slow = ways(emitter, EVENTS[kind].model_validate(chosen))
        assert fast == slow


def test_events_of_agents_are_not_changed_as_a_rule(make: Callable[[Redactor], Emitter]) -> None:
    """Nearly all types are published as they are; without this, the tests above and below would show nothing."""
    emitter, unchanged = make(redactor_of(SECRET)), set()
    kinds = {path.stem for path in EXAMPLES.iterdir() if path.stem.startswith("agent.")}
    for kind in kinds:
        fields = json.loads((EXAMPLES / f"{kind}.json").read_text())["data"]
        emitter._changed_lately = 0
        if emitter._unchanged(EVENTS[kind].model_validate({**fields, "artifacts": None})) is not None:
            unchanged.add(kind)
    assert {"agent.message", "agent.tool_use", "agent.tool_result", "agent.thinking", "agent.usage"} <= unchanged
    assert len(unchanged) > len(kinds) * 0.8


@SHARED
@given(values=st.dictionaries(TEXTS, VALUES, max_size=4))
@example(values={"deep": json.loads("[" * 99 + "]" * 99)})
@example(values={"deep": json.loads("[" * 100 + "]" * 100)})
@example(values={"wide": [{"a": None}] * 9000})
@example(values={"escaped": "\x7f" * 10_900})
def test_any_structure_has_the_same_document(make: Callable[[Redactor], Emitter], values: dict[str, Any]) -> None:
    """Values that are too large, too deep or not storable are changed as ever."""
    fast, slow = ways(make(redactor_of(SECRET)), AgentToolUse(tool="sh", tool_use_id="1", input=values))
    assert fast == slow


@SHARED
@given(text=TEXTS, other=TEXTS)
def test_any_text_has_the_same_document(make: Callable[[Redactor], Emitter], text: str, other: str) -> None:
    """So have texts of any length and with any characters."""
    fast, slow = ways(make(redactor_of(SECRET)), AgentToolResult(tool_use_id=other, result=text))
    assert fast == slow


def test_document_of_a_long_text_is_not_searched(make: Callable[[Redactor], Emitter]) -> None:
    """It would take longer to search than the text itself; a short one is published as it is."""
    emitter = make(redactor_of(SECRET))
    found = [emitter._unchanged(AgentToolResult(tool_use_id="1", result='"' * length)) for length in (9000, 20_000)]
    assert [document is None for document in found] == [False, True]


async def test_clean_events_follow_one_with_a_secret(spool: Spool, emitter: Emitter, published_of: Any) -> None:
    """Whether events are unchanged is found again, and none of those meanwhile differs."""
    texts = ["a", "sk-ant-api03-" + "aB3_" * 12, *map(str, range(20))]
    for text in texts:
        await emitter.emit(AgentMessage(content=text, content_length=1))
    found = [event.data.content for event in published_of(spool)]
    assert found == ["a", "[redacted]", *texts[2:]]
    assert emitter._unchanged(AgentMessage(content="a", content_length=1)) is not None


SHAPES: Final[tuple[Callable[[str], dict[str, Any]], ...]] = (
    lambda text: {"text": text},
    lambda text: {"list": ["a", {"b": [text]}]},
    lambda text: {"key": {text: 1}},
    lambda text: {"json": json.dumps({"a": text})},
    lambda text: {"escaped": json.dumps({"a": text}, ensure_ascii=False)[1:-1]},
    lambda text: {"bytes": list(text.encode())},
    lambda text: {"among others": ["x 0", text, "y 9"], "after": "z"},
)


def may_change(redactor: Redactor, values: dict[str, Any]) -> bool:
    """Of the document of an event with these values."""
    event = AgentToolUse(tool="sh", tool_use_id="1", input=values)
    return redactor.may_change(event.model_dump_json().encode())


@given(case=written(), shape=st.sampled_from(SHAPES))
def test_document_with_a_secret_is_never_taken_for_clean(case: tuple[str, str], shape: Callable[[str], Any]) -> None:
    """Whatever is redacted in the values, in any form, wrapping and surrounding, is noticed in the document."""
    secret, text = case
    redactor, values = Redactor([secret]), shape(text)
    if redactor.value(values) != values:
        assert may_change(redactor, values)


@pytest.mark.parametrize(("write", "secret"), CASES)
def test_secret_as_tools_write_it_is_noticed_in_a_document(write: Callable[[str], str], secret: str) -> None:
    """Every encoding of the documented table, at every place in an event."""
    redactor = redactor_of(secret, "another-secret-value")
    for shape in SHAPES:
        values = shape(write(secret))
        assert redactor.value(values) == values or may_change(redactor, values)


@pytest.mark.parametrize("token", [*TOKENS.values(), "https://user:word@host/", 'https://a"b\\c:d\n"@host/'], ids=repr)
def test_token_of_a_common_format_is_noticed_in_a_document(token: str) -> None:
    """With text before and behind it, and without a known secret."""
    for shape in SHAPES:
        for text in (token, f"a {token}\n", f'"{token}"', f"\t{token}\\"):
            values = shape(text)
            assert Redactor().value(values) == values or may_change(Redactor(), values)


def test_number_that_is_a_secret_is_redacted(make: Callable[[Redactor], Emitter]) -> None:
    """It may stand in a document without quotes."""
    event = AgentToolUse(tool="sh", tool_use_id="1", input={"pin": 73915526})
    encoded = make(redactor_of("73915526")).encode(event, 1)
    assert b"73915526" not in encoded.record.payload
