"""Replies of the Runtime API and of agent servers, and their conversion to boxes. Pure."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final
from urllib.parse import urlsplit, urlunsplit

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field

from sandherd.contracts.specs import SandboxLimits
from sandherd.settings.remote import FACTORS
from spawner.runtimes.boxes.box_files import HERD
from spawner.runtimes.boxes.provider import Address, Box, BoxState, ProgramEnd, ProviderError, ProviderFault
from spawner.runtimes.remote.scripts import ProgramState

_MIB_PER_GB: Final = 1024
_REMOVED: Final = frozenset({"stopped"})
_FALLEN: Final = frozenset({"failed", "crashloopbackoff"})
_CLASSES: Final = {"sysbox": "sysbox-runc", "gvisor": "gvisor"}
_NO_IMAGE: Final = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
_WORK: Final = {12_000: "work-1", 12_001: "work-2"}
"""The ports of a runtime that OpenHands' own programs rely on, and the name of each in URLs."""
_PORTS: Final = range(1024, 65_536)
_PLAIN: Final = re.compile(r"https?://[^\s@?#/]+(/[^\s@?#]*)?")
"""A URL that can't contain a secret."""
_LONGEST: Final = 56
"""The maximum length of a session's name: it becomes part of host names."""


def _lower(value: Any) -> str:
    return str(value or "").lower()


def _none_as_empty(value: Any) -> Any:
    return [] if value is None else value


def _hosts(value: Any) -> Any:
    return {str(url): port for url, port in value.items() if isinstance(port, int)} if isinstance(value, dict) else None


Word = Annotated[str, BeforeValidator(_lower)]


class RemoteRuntimeState(BaseModel):
    """A runtime, as the Runtime API shows it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str = Field(validation_alias=AliasChoices("runtime_id", "id"))
    session_id: str = ""
    url: str | None = None
    key: str | None = Field(None, validation_alias="session_api_key", repr=False)
    work_hosts: Annotated[dict[str, int] | None, BeforeValidator(_hosts)] = None
    """URLs of other servers in the runtime, and the port of each; None: not reported."""
    status: Word = ""
    pod_status: Word = ""
    restart_count: Annotated[int, BeforeValidator(lambda value: value or 0)] = 0
    restart_reasons: Annotated[list[Any], BeforeValidator(_none_as_empty)] = []
    container_statuses: Annotated[list[Any], BeforeValidator(_none_as_empty)] = []

    @property
    def removed(self) -> bool:
        """Whether the runtime no longer exists."""
        return self.status in _REMOVED

    @property
    def ready(self) -> bool:
        """Whether the agent server is reported as ready. Not every reply contains the pod's status."""
        return self.status == "running" and self.pod_status in {"ready", ""}

    @property
    def ports(self) -> dict[int, str]:
        """The ports reachable from outside, with their URLs; if not reported, the ports that OpenHands expects."""
        if self.work_hosts is None:
            return {port: _beside(self.url, self.id, name) for port, name in _WORK.items()} if self.url else {}
        found = {port: url.rstrip("/") for url, port in self.work_hosts.items() if _PLAIN.fullmatch(url)}
        return {port: url for port, url in found.items() if port in _PORTS}

    @property
    def fallen(self) -> bool:
        """Whether the runtime has failed and will not recover by itself."""
        return self.status == "error" or self.pod_status in _FALLEN

    @property
    def lacks_image(self) -> bool:
        """Whether its image can't be pulled."""
        return any(word in str(self.container_statuses) for word in _NO_IMAGE)

    @property
    def reasons(self) -> str:
        """Why the runtime was restarted, for users."""
        return ", ".join(dict.fromkeys(str(reason) for reason in self.restart_reasons))

    @property
    def out_of_memory(self) -> bool:
        """Whether the runtime was killed because it was out of memory."""
        return "oomkill" in self.reasons.replace(" ", "").lower()


def _beside(url: str, runtime: str, name: str) -> str:
    """The URL where OpenHands expects another server of a runtime: a sibling path, or a separate host."""
    parts = urlsplit(url)
    if parts.path.split("/")[1:2] == [runtime]:
        return urlunsplit((parts.scheme, parts.netloc, f"/{runtime}/{name}", "", ""))
    return urlunsplit((parts.scheme, f"{name}-{parts.netloc}", parts.path.rstrip("/"), "", ""))


class RuntimeList(BaseModel):
    """All existing runtimes of an account."""

    model_config = ConfigDict(extra="ignore")

    runtimes: list[RemoteRuntimeState]


class BashOutput(BaseModel):
    """The result of a command line run by an agent server."""

    model_config = ConfigDict(extra="ignore")

    exit_code: int | None = None
    stdout: str | None = None
    stderr: str | None = None


def session(herd: str, name: str) -> str:
    """The session name of a box. It contains the herd, because the Runtime API has no labels."""
    called = f"{herd}-{name}"
    if len(called) > _LONGEST:
        message = f"name {name} is too long: with its herd the Runtime API accepts {_LONGEST} characters"
        raise ProviderError(ProviderFault.REFUSED, f"remote: {message}")
    return called


def name_of(session_id: str) -> tuple[str, str] | None:
    """The herd and name of a box from its session; None if the session is not a box."""
    herd, found, name = session_id.partition("-")
    return (herd, name) if found and name.startswith("sbx-") else None


def is_of(runtime: RemoteRuntimeState, herd: str | None) -> bool:
    """Whether the runtime is a box of this herd; `herd` None: of any herd."""
    found = name_of(runtime.session_id)
    return found is not None and herd in {None, found[0]}


def address(runtime: RemoteRuntimeState, name: str, port: int) -> Address:
    """The address of a port. Raises `ProviderError` if the port can't be reached."""
    if not runtime.ready:
        message = f"remote: {name} is {runtime.status}: its ports can't be reached now"
        raise ProviderError(ProviderFault.TRANSIENT, message)
    if port not in runtime.ports:
        only = ", ".join(map(str, sorted(runtime.ports))) or "none"
        message = f"remote: port {port} of {name} can't be reached; the Runtime API exposes {only}"
        raise ProviderError(ProviderFault.REFUSED, message)
    return Address(runtime.ports[port])


def factor(limits: SandboxLimits, minimum: int, step_gb: float) -> int:
    """The resource factor a runtime needs. Raises `ProviderError` if no factor is large enough."""
    for size in FACTORS:
        if size >= minimum and limits.memory_mb <= size * step_gb * _MIB_PER_GB:
            return size
    largest_gb = FACTORS[-1] * step_gb
    message = f"{limits.memory_mb} MiB of memory exceed the largest runtime: {largest_gb:g} GB"
    raise ProviderError(ProviderFault.REFUSED, f"remote: {message}")


def runtime_class(name: str | None) -> dict[str, str]:
    """The runtime class, by the name that the Runtime API uses."""
    return {"runtime_class": _CLASSES[name]} if name else {}


def box(runtime: RemoteRuntimeState, program: ProgramState | None, *, paused_is_aside: bool) -> Box:
    """Convert a runtime, and its program's state if its agent server reports it, to a box.

    The box's agent may have forged the reported state: so the session alone determines its herd and name, and only a
    box that has ended can be quarantined.
    """
    herd, name = name_of(runtime.session_id) or ("", runtime.session_id)
    state = program or ProgramState()
    lost, unresponsive = _lost(runtime, program), program is None and runtime.ready
    end = state.end or lost
    return Box(
        name=name,
        id=runtime.id,
        labels={**state.labels, HERD: herd},
        state=_state(runtime, state, end, unresponsive=unresponsive),
        created_at=state.made or datetime.fromtimestamp(0, UTC),
        runs=max(state.runs, 1 if lost or unresponsive else 0),
        end=end,
        problem=_problem(runtime, program),
        quarantined=(state.aside and end is not None) or (runtime.status == "paused" and paused_is_aside),
    )


def require_ready(runtime: RemoteRuntimeState) -> RemoteRuntimeState:
    """Return the runtime if it is ready. Raises `ProviderError` (`transient`) if not."""
    if not runtime.ready:
        message = (
            f"remote: {runtime.session_id} is not ready: {runtime.pod_status or runtime.status or 'no reason given'}"
        )
        raise ProviderError(ProviderFault.TRANSIENT, message)
    return runtime


def _state(runtime: RemoteRuntimeState, state: ProgramState, end: ProgramEnd | None, *, unresponsive: bool) -> BoxState:
    if runtime.fallen:
        return BoxState.FAILED
    if end:
        return BoxState.STOPPED
    if state.frozen:
        return BoxState.PAUSED
    return BoxState.RUNNING if state.runs or unresponsive else BoxState.CREATING


def _lost(runtime: RemoteRuntimeState, program: ProgramState | None) -> ProgramEnd | None:
    """The end of a program whose end is not recorded in the box; None if it still runs, as far as is known."""
    if runtime.status == "paused":
        return ProgramEnd(None, reason="its runtime is paused, which ends its processes")
    if runtime.fallen:
        return ProgramEnd(None, out_of_memory=runtime.out_of_memory, reason=_problem(runtime, program))
    unsupervised = program is not None and program.runs and not program.supervised
    if program is not None and runtime.restart_count and (unsupervised or not program.runs):
        because = f"its runtime was restarted: {runtime.reasons or 'no reason given'}"
        return ProgramEnd(None, out_of_memory=runtime.out_of_memory, reason=because)
    return ProgramEnd(None, reason="its runtime has lost its processes") if unsupervised else None


def _problem(runtime: RemoteRuntimeState, program: ProgramState | None) -> str:
    if runtime.fallen:
        why = f": {runtime.reasons}" if runtime.reasons else ""
        return f"its pod is {runtime.pod_status or runtime.status}{why}"
    return "" if program or runtime.status == "paused" else "its agent server does not respond"


def error_message(body: Any) -> str:
    """The message of an error reply, in one line of at most 300 characters."""
    if isinstance(body, Mapping):
        for name in ("message", "detail", "error"):
            if body.get(name):
                return " ".join(str(body[name]).split())[:300]
    return " ".join(str(body or "").split())[:300]
