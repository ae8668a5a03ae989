"""The client side of a session: handles an agent's notifications and requests."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from acp import RequestError
from acp.schema import AllowedOutcome, DeniedOutcome, ReadTextFileResponse, RequestPermissionResponse

from sandherd_drivers.acp.client_files import ClientFiles, RefusedPathError
from sandherd_drivers.acp.content_blocks import Json
from sandherd_drivers.acp.outcomes import choose_option
from sandherd_drivers.acp.session_updates import SessionUpdates
from sandherd_drivers.acp.tool_calls import EventLine, ToolCall
from sandherd_drivers.wire import Decision, Wire

_Result = TypeVar("_Result")


class WorkClient:
    """Handles an agent's requests. The library calls these methods by name, each in a task of its own.

    The events of an update are published before its method first awaits anything, so they are in the agent's order.
    """

    def __init__(self, wire: Wire, updates: SessionUpdates, files: ClientFiles, *, needs_approval: bool) -> None:
        self._wire, self._files, self._needs_approval = wire, files, needs_approval
        self._granted_files: set[tuple[int, str]] = set()
        """Turn and path of each file that an approved call named: the agent may access it once."""
        self.updates = updates
        self.turn = 0
        self.replaying = False
        """Whether the agent repeats updates of a loaded session, which were published in an earlier attempt."""
        self.stopping = False
        """Whether the turn must end: no more approvals are requested."""
        self.on_received: Callable[[], None] = _ignore
        """Called for every update or request from the agent, except repeated updates of a loaded session."""

    def publish(self, events: Iterable[EventLine]) -> None:
        """Publish events of this turn."""
        for event, fields in events:
            self._wire.publish_event(event, turn=self.turn, **fields)

    async def session_update(self, update: Any, **_: Any) -> None:
        """Publish the events of an update from the agent."""
        fields = _to_json(update)
        if self.replaying:
            self.updates.record_replayed(fields)
            return
        self.on_received()
        self.publish(self.updates.events_for(fields))

    async def request_permission(self, tool_call: Any, options: list[Any], **_: Any) -> RequestPermissionResponse:
        """The agent requests permission for a tool call."""
        self.on_received()
        call, events = self.updates.call_for_approval(_to_json(tool_call))
        self.publish(events)
        granted = await self._request_decision(call)
        if granted:
            self._granted_files |= {(self.turn, path) for path in call.paths}
        option = None if self.stopping else choose_option([(o.option_id, o.kind) for o in options], granted=granted)
        if option is None:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=option))

    async def _request_decision(self, call: ToolCall) -> bool:
        if self.stopping:
            decision = Decision(granted=False, withdrawn=True)
        else:
            decision = await self._wire.request_approval(call.tool, call.input, call.title)
        call.denial = None if decision.granted else decision.outcome
        return decision.granted

    async def read_text_file(
        self, path: str, line: int | None = None, limit: int | None = None, **_: Any
    ) -> ReadTextFileResponse:
        """The agent reads a file."""
        self.on_received()
        await self._request_access("read", path, {"path": path, "line": line, "limit": limit})
        return ReadTextFileResponse(content=_access_file(path, lambda: self._files.read(path, line, limit)))

    async def write_text_file(self, path: str, content: str, **_: Any) -> None:
        """The agent writes a file."""
        self.on_received()
        await self._request_access("edit", path, {"path": path, "content": content})
        _access_file(path, lambda: self._files.write(path, content))

    async def _request_access(self, tool: str, path: str, input: Json) -> None:
        """Request approval of a file access, in the same way as of a tool call. `tool` is the protocol's kind of tool.

        If an approved call has named the file, one access needs no other approval. Raises `RequestError` if denied.
        """
        if not self._needs_approval:
            return
        if (self.turn, path) in self._granted_files:
            self._granted_files.remove((self.turn, path))
            return
        decision = (
            Decision(granted=False)
            if self.stopping
            else await self._wire.request_approval(tool, input, f"{tool} {path}")
        )
        if not decision.granted:
            raise RequestError.invalid_request({"details": decision.reason or "this is not allowed"})


def _ignore() -> None:
    return


def _to_json(model: Any) -> Json:
    document: Json = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return document


def _access_file(path: str, access: Callable[[], _Result]) -> _Result:
    """The result of a file access. Raises the protocol's error if it fails."""
    try:
        return access()
    except RefusedPathError as error:
        raise RequestError.invalid_params({"details": str(error)}) from None
    except FileNotFoundError:
        raise RequestError.resource_not_found(path) from None
    except OSError as error:
        raise RequestError.internal_error({"details": f"{path!r}: {error.strerror}"}) from None
