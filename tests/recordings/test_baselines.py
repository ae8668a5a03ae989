"""The published conditions of other detectors, on handmade sequences."""

from typing import Any

from tests.recordings.baselines import chants, gemini, openhands

Event = dict[str, Any]


def session(*parts: tuple[str, dict[str, Any]]) -> list[Event]:
    return [{"type": f"agent.{kind}", "sequence": number, "data": data} for number, (kind, data) in enumerate(parts, 1)]


def call(
    command: str, result: str = "1", *, is_error: bool = False, thought: str = ""
) -> list[tuple[str, dict[str, Any]]]:
    """A call and its result, with the events in between as Claude's driver publishes them."""
    text = [("message", {"content": thought})] if thought else []
    used = {"tool": "Bash", "input": {"command": command, "description": f"{command} {result}"}}
    ended = {"result": result, "is_error": is_error}
    return [("model_call_started", {}), *text, ("tool_use", used), ("tool_result", ended)]


def test_openhands_conditions() -> None:
    """Four equal pairs, three equal errors, three messages and two pairs in turns are found; other thoughts not."""
    assert openhands(session(*call("ls") * 3)) is None
    assert openhands(session(*call("ls") * 4)) == 12
    assert openhands(session(*(part for n in range(9) for part in call("ls", str(n))))) is None
    assert openhands(session(*(part for n in range(9) for part in call("ls", thought=str(n))))) is None
    assert openhands(session(*call("ls", is_error=True) * 3)) == 9
    assert openhands(session(*(call("a") + call("b")) * 3)) == 18
    assert openhands(session(*(call("a") + call("b") + call("c")) * 6)) is None
    assert openhands(session(*[("message", {"content": "hm"}), ("turn_completed", {})] * 3)) == 6
    sent = ("message_injected", {"message_type": "user_message"})
    assert openhands(session(*call("ls") * 2, sent, *call("ls") * 2)) is None


def test_gemini_conditions() -> None:
    """A block of up to five calls five times, with any results, and a chunk ten times outside of code are found."""
    assert gemini(session(*call("ls") * 4)) is None
    assert gemini(session(*(part for n in range(5) for part in call("ls", str(n))))) == 14
    assert gemini(session(*(call("a") + call("b") + call("c")) * 5)) == 44
    line = "The total is the sum of all items in the cart here. "
    assert not chants(line * 9)
    assert chants("First. " + line * 12)
    assert not chants("```\n" + (line + "\n") * 30 + "```\n")
    assert not chants("".join(f"| {line} |\n" for _ in range(30)))
    assert not chants(" ".join(f"Sentence number {n} is another one, which has its own text." for n in range(40)))
