"""The client's side of a session: what an agent tells it and asks of it."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from acp import RequestError
from acp.schema import AllowedOutcome, DeniedOutcome, ReadTextFileResponse, RequestPermissionResponse

from sandherd_drivers.acp.blocks import Json
from sandherd_drivers.acp.outcomes import chosen
from sandherd_drivers.acp.tool_calls import Said
from sandherd_drivers.acp.updates import Updates
from sandherd_drivers.acp.work_tree import RefusedPathError, WorkTree
from sandherd_drivers.wire import Decision, Wire

_Result = TypeVar("_Result")


class WorkClient:
    """Answers an agent. The library calls these methods by their names, each in a task of its own.

    What an update says is said before its method first waits for anything, so that the order stays the agent's.
    """

    def __init__(self, wire: Wire, updates: Updates, tree: WorkTree, *, asks: bool) -> None:
        self._wire, self._tree, self._asks = wire, tree, asks
        self._granted: set[tuple[int, str]] = set()
        """Files that a call may touch which leave was given for, and its turn."""
        self.updates = updates
        self.turn = 0
        self.replaying = False
        """Whether the agent tells again what was said before our time."""
        self.stopping = False
        """Whether the turn is to end: nobody is asked any more."""
        self.heard: Callable[[], None] = _nothing
        """Called at each sign of the agent."""

    def say(self, said: Iterable[Said]) -> None:
        """Say events of this turn."""
        for event, fields in said:
            self._wire.event(event, turn=self.turn, **fields)

    async def session_update(self, update: Any, **_: Any) -> None:
        """The agent tells something."""
        told = _plain(update)
        if self.replaying:
            self.updates.replayed(told)
            return
        self.heard()
        self.say(self.updates.take(told))

    async def request_permission(self, tool_call: Any, options: list[Any], **_: Any) -> RequestPermissionResponse:
        """The agent asks whether it may."""
        self.heard()
        call, said = self.updates.asked_about(_plain(tool_call))
        self.say(said)
        granted = not self.stopping and (await self._wire.ask(call.tool, call.input, call.title)).granted
        if granted:
            self._granted |= {(self.turn, path) for path in call.paths}
        option = None if self.stopping else chosen([(o.option_id, o.kind) for o in options], granted=granted)
        if option is None:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=option))

    async def read_text_file(
        self, path: str, line: int | None = None, limit: int | None = None, **_: Any
    ) -> ReadTextFileResponse:
        """The agent wants to see a file."""
        self.heard()
        await self._leave("read", path, {"path": path, "line": line, "limit": limit})
        return ReadTextFileResponse(content=_tried(path, lambda: self._tree.read(path, line, limit)))

    async def write_text_file(self, path: str, content: str, **_: Any) -> None:
        """The agent wants a file to be written."""
        self.heard()
        await self._leave("edit", path, {"path": path, "content": content})
        _tried(path, lambda: self._tree.write(path, content))

    async def _leave(self, tool: str, path: str, input: Json) -> None:
        """A file that we touch for the agent is a tool as any other, by the name that the protocol has for its kind.

        Leave that was given for a call that named the file is good for it, once. Raises the protocol's error.
        """
        if not self._asks:
            return
        if (self.turn, path) in self._granted:
            self._granted.remove((self.turn, path))
            return
        decision = Decision(granted=False) if self.stopping else await self._wire.ask(tool, input, f"{tool} {path}")
        if not decision.granted:
            raise RequestError.invalid_request({"details": decision.reason or "this is not allowed"})


def _nothing() -> None:
    return


def _plain(model: Any) -> Json:
    plain: Json = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return plain


def _tried(path: str, access: Callable[[], _Result]) -> _Result:
    """What an access to a file gives. Raises what the protocol has for one that fails."""
    try:
        return access()
    except RefusedPathError as error:
        raise RequestError.invalid_params({"details": str(error)}) from None
    except FileNotFoundError:
        raise RequestError.resource_not_found(path) from None
    except OSError as error:
        raise RequestError.internal_error({"details": f"{path!r}: {error.strerror}"}) from None
