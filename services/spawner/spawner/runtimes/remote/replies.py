"""Replies of the Runtime API and of agent servers, and their conversion to boxes. Pure."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final
from urllib.parse import urlsplit, urlunsplit

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field

from sandherd.contracts.names import SANDBOX_PREFIX
from sandherd.contracts.specs import SandboxLimits
from sandherd.settings.remote import FACTORS
from spawner.runtimes.boxes.box_files import HERD
from spawner.runtimes.boxes.provider import Address, Box, BoxState, ProgramEnd, ProviderError, ProviderFault
from spawner.runtimes.remote.scripts import ProgramState

_MIB_PER_GB: Final = 1024
_REMOVED_STATES: Final = frozenset({"stopped"})
_FAILED_POD_STATES: Final = frozenset({"failed", "crashloopbackoff"})
_RUNTIME_CLASSES: Final = {"sysbox": "sysbox-runc", "gvisor": "gvisor"}
_IMAGE_ERRORS: Final = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
_USUAL_PORTS: Final = {12_000: "work-1", 12_001: "work-2"}
"""The ports that OpenHands' own programs expect in a runtime, each with its name in URLs."""
_VALID_PORTS: Final = range(1024, 65_536)
_PLAIN_URL: Final = re.compile(r"https?://[^\s@?#/]+(/[^\s@?#]*)?")
"""A URL that can't contain a secret."""
_MAX_SESSION_LENGTH: Final = 56
"""The maximum length of a session's name, which becomes part of host names."""


def _to_lower(value: Any) -> str:
    return str(value or "").lower()


def _none_as_empty(value: Any) -> Any:
    return [] if value is None else value


def _ports_by_url(value: Any) -> Any:
    return {str(url): port for url, port in value.items() if isinstance(port, int)} if isinstance(value, dict) else None


LowercaseText = Annotated[str, BeforeValidator(_to_lower)]


class RemoteRuntimeState(BaseModel):
    """A runtime, as the Runtime API shows it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str = Field(validation_alias=AliasChoices("runtime_id", "id"))
    session_id: str = ""
    url: str | None = None
    key: str | None = Field(None, validation_alias="session_api_key", repr=False)
    work_hosts: Annotated[dict[str, int] | None, BeforeValidator(_ports_by_url)] = None
    """URLs of other servers in the runtime, and the port of each; None: not reported."""
    status: LowercaseText = ""
    pod_status: LowercaseText = ""
    restart_count: Annotated[int, BeforeValidator(lambda value: value or 0)] = 0
    restart_reasons: Annotated[list[Any], BeforeValidator(_none_as_empty)] = []
    container_statuses: Annotated[list[Any], BeforeValidator(_none_as_empty)] = []

    @property
    def removed(self) -> bool:
        """Whether the runtime no longer exists."""
        return self.status in _REMOVED_STATES

    @property
    def ready(self) -> bool:
        """Whether the agent server is reported as ready. Not every reply contains the pod's status."""
        return self.status == "running" and self.pod_status in {"ready", ""}

    @property
    def ports(self) -> dict[int, str]:
        """The ports that can be reached from outside, with their URLs. If none are reported, `_USUAL_PORTS`."""
        if self.work_hosts is None:
            return (
                {port: _sibling_url(self.url, self.id, name) for port, name in _USUAL_PORTS.items()} if self.url else {}
            )
        urls = {port: url.rstrip("/") for url, port in self.work_hosts.items() if _PLAIN_URL.fullmatch(url)}
        return {port: url for port, url in urls.items() if port in _VALID_PORTS}

    @property
    def has_failed(self) -> bool:
        """Whether the runtime has failed and will not recover by itself."""
        return self.status == "error" or self.pod_status in _FAILED_POD_STATES

    @property
    def lacks_image(self) -> bool:
        """Whether its image can't be pulled."""
        return any(error in str(self.container_statuses) for error in _IMAGE_ERRORS)

    @property
    def reasons(self) -> str:
        """Why the runtime was restarted, for users."""
        return ", ".join(dict.fromkeys(str(reason) for reason in self.restart_reasons))

    @property
    def out_of_memory(self) -> bool:
        """Whether the runtime was killed because it was out of memory."""
        return "oomkill" in self.reasons.replace(" ", "").lower()


def _sibling_url(url: str, runtime: str, name: str) -> str:
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
    session_name = f"{herd}-{name}"
    if len(session_name) > _MAX_SESSION_LENGTH:
        message = f"name {name} is too long: with its herd the Runtime API accepts {_MAX_SESSION_LENGTH} characters"
        raise ProviderError(ProviderFault.REFUSED, f"remote: {message}")
    return session_name


def name_of(session_id: str) -> tuple[str, str] | None:
    """The herd and name of a box from its session; None if the session is not a box."""
    herd, separator, name = session_id.partition("-")
    return (herd, name) if separator and name.startswith(SANDBOX_PREFIX) else None


def is_of(runtime: RemoteRuntimeState, herd: str | None) -> bool:
    """Whether the runtime is a box of this herd, or of any herd if `herd` is None."""
    herd_and_name = name_of(runtime.session_id)
    return herd_and_name is not None and herd in {None, herd_and_name[0]}


def address(runtime: RemoteRuntimeState, name: str, port: int) -> Address:
    """The address of a port. Raises `ProviderError` if the port can't be reached."""
    if not runtime.ready:
        message = f"remote: {name} is {runtime.status}: its ports can't be reached now"
        raise ProviderError(ProviderFault.TRANSIENT, message)
    if port not in runtime.ports:
        exposed = ", ".join(map(str, sorted(runtime.ports))) or "none"
        message = f"remote: port {port} of {name} can't be reached; the Runtime API exposes {exposed}"
        raise ProviderError(ProviderFault.REFUSED, message)
    return Address(runtime.ports[port])


def resource_factor(limits: SandboxLimits, minimum: int, step_gb: float) -> int:
    """The resource factor that a runtime needs. Raises `ProviderError` if no factor is large enough."""
    for size in FACTORS:
        if size >= minimum and limits.memory_mb <= size * step_gb * _MIB_PER_GB:
            return size
    largest_gb = FACTORS[-1] * step_gb
    message = f"{limits.memory_mb} MiB of memory exceed the largest runtime: {largest_gb:g} GB"
    raise ProviderError(ProviderFault.REFUSED, f"remote: {message}")


def runtime_class(name: str | None) -> dict[str, str]:
    """The runtime class, by the name that the Runtime API uses."""
    return {"runtime_class": _RUNTIME_CLASSES[name]} if name else {}


def box(runtime: RemoteRuntimeState, program: ProgramState | None, *, paused_is_quarantined: bool) -> Box:
    """Convert a runtime, and its program's state if its agent server reports it, to a box.

    The box's agent may have forged the reported state. So the session alone determines the herd and the name, and only
    a box that has ended counts as quarantined. `paused_is_quarantined`: whether a paused runtime is in quarantine.
    """
    herd, name = name_of(runtime.session_id) or ("", runtime.session_id)
    state = program or ProgramState()
    lost, unresponsive = _unrecorded_end(runtime, program), program is None and runtime.ready
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
        quarantined=(state.aside and end is not None) or (runtime.status == "paused" and paused_is_quarantined),
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
    if runtime.has_failed:
        return BoxState.FAILED
    if end:
        return BoxState.STOPPED
    if state.frozen:
        return BoxState.PAUSED
    return BoxState.RUNNING if state.runs or unresponsive else BoxState.CREATING


def _unrecorded_end(runtime: RemoteRuntimeState, program: ProgramState | None) -> ProgramEnd | None:
    """The end of a program whose end is not recorded in the box; None if it still runs, as far as is known."""
    if runtime.status == "paused":
        return ProgramEnd(None, reason="its runtime is paused, which ends its processes")
    if runtime.has_failed:
        return ProgramEnd(None, out_of_memory=runtime.out_of_memory, reason=_problem(runtime, program))
    unsupervised = program is not None and program.runs and not program.supervised
    if program is not None and runtime.restart_count and (unsupervised or not program.runs):
        reason = f"its runtime was restarted: {runtime.reasons or 'no reason given'}"
        return ProgramEnd(None, out_of_memory=runtime.out_of_memory, reason=reason)
    return ProgramEnd(None, reason="its runtime has lost its processes") if unsupervised else None


def _problem(runtime: RemoteRuntimeState, program: ProgramState | None) -> str:
    if runtime.has_failed:
        reasons = f": {runtime.reasons}" if runtime.reasons else ""
        return f"its pod is {runtime.pod_status or runtime.status}{reasons}"
    return "" if program or runtime.status == "paused" else "its agent server does not respond"


def error_message(body: Any) -> str:
    """The message of an error reply, in one line of at most 300 characters."""
    if isinstance(body, Mapping):
        for name in ("message", "detail", "error"):
            if body.get(name):
                return " ".join(str(body[name]).split())[:300]
    return " ".join(str(body or "").split())[:300]
