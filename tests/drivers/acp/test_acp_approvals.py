"""Approvals of an ACP agent: the request is passed on, and the decision returns as one of its options."""

import json

import pytest

from tests.drivers.acp.conftest import Converse

pytestmark = pytest.mark.agents


async def test_decision_reaches_the_agent(converse: Converse) -> None:
    """The call is published before its approval; the decision selects the agent's option for one call."""
    driver = await converse("may t1 rm -rf build\ndone t1 gone\nmay t2 mv\nfailed t2 denied")
    ask = await driver.received("driver.ask")
    assert (ask["tool"], ask["input"], ask["reason"]) == ("execute", {"command": "rm -rf build"}, "rm -rf build")
    assert driver.emitted("agent.tool_use")[0]["tool_use_id"] == "t1"
    driver.send("decide", approval_id=ask["approval_id"], granted=True, reason=None)
    second = await driver.received("driver.ask", count=2)
    driver.send("decide", approval_id=second["approval_id"], granted=False, reason="no", by_user=True)
    await driver.received("driver.result")
    assert [line["outcome"] for line in driver.emitted("agent.tool_result")] == ["ok", "refused"]
    assert [line["content"] for line in driver.emitted("agent.message")] == ["[yes]", "[no]"]
    assert len(driver.emitted("agent.tool_use")) == len(driver.emitted("agent.tool_result")) == 2


async def test_approval_without_reject_option_is_cancelled(converse: Converse) -> None:
    """A denied call is answered with the outcome `cancelled` if the agent offers no option to reject it."""
    driver = await converse("may! t1 rm\nfailed t1 no")
    ask = await driver.received("driver.ask")
    driver.send("decide", approval_id=ask["approval_id"], granted=False, reason=None)
    await driver.received("driver.result")
    assert driver.emitted("agent.tool_result")[0]["outcome"] == "denied"
    assert driver.emitted("agent.message")[0]["content"] == "[cancelled]"


async def test_interrupt_cancels_the_approval(converse: Converse) -> None:
    """The agent gets the outcome `cancelled`, also for a request after the interrupt, and so has the call."""
    driver = await converse("may t1 rm\nmay t2 mv\nwait")
    await driver.received("driver.ask")
    driver.send("interrupt")
    await driver.received("driver.turn", state="idle")
    assert "".join(line["content"] for line in driver.emitted("agent.message")).startswith("[cancelled][cancelled]")
    assert len(driver.emitted("driver.ask")) == 1
    assert [line["outcome"] for line in driver.emitted("agent.tool_result")] == ["cancelled", "cancelled"]


async def test_stop_cancels_the_approval(converse: Converse) -> None:
    """The stop does not wait for a decision."""
    driver = await converse("may t1 rm\nwait")
    await driver.received("driver.ask")
    assert await driver.stop() == 0
    assert driver.emitted("driver.result")[0]["error_type"] == "stopped"


async def test_file_access_through_client_needs_approval(converse: Converse) -> None:
    """A read or write that the agent requests of its client waits for the worker's decision unless all is allowed."""
    driver = await converse("say begin", approvals={"otherwise": "ask"})
    await driver.received("driver.turn", state="idle")
    yes, no = driver.work_dir / "yes.txt", driver.work_dir / "no.txt"
    driver.message(f"write {yes} hello\nsay |\nwrite {no} hello\nsay |\nread {yes}")
    for count, (tool, path, granted) in enumerate([("edit", yes, True), ("edit", no, False), ("read", yes, False)], 1):
        ask = await driver.received("driver.ask", count=count)
        assert (ask["tool"], ask["input"]["path"]) == (tool, str(path))
        assert not path.exists() or tool == "read"
        driver.send("decide", approval_id=ask["approval_id"], granted=granted, reason="because")
    await driver.received("driver.turn", turn=2, state="idle")
    written, refused, unread = driver.emitted("agent.message")[1]["content"].split("|")
    assert (written, yes.read_text(), no.exists()) == ("written", "hello", False)
    assert all(answer.startswith("error") and "because" in answer for answer in (refused, unread))


async def test_approval_of_edit_covers_one_write_of_its_file(converse: Converse) -> None:
    """An agent whose edit was approved may have its client write that file once without a second approval."""
    driver = await converse("say begin", approvals={"tools": {"edit": "ask"}})
    await driver.received("driver.turn", state="idle")
    path = driver.work_dir / "a.txt"
    where = json.dumps({"kind": "edit", "locations": [{"path": str(path)}]})
    driver.message(
        f"tool t1 edit\nmore t1 {where}\nmay t1 edit a.txt\nsay |\nwrite {path} one\nsay |\nwrite {path} two"
    )
    ask = await driver.received("driver.ask")
    driver.send("decide", approval_id=ask["approval_id"], granted=True, reason=None)
    again = await driver.received("driver.ask", count=2)
    assert (again["input"]["content"], path.read_text()) == ("two", "one")
    driver.send("interrupt")
    await driver.received("driver.turn", turn=2, state="idle")
    assert path.read_text() == "one"
