"""What the Runtime API and an agent server answer, and what a box is by that. All pure."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final
from urllib.parse import urlsplit, urlunsplit

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field

from sandherd.contracts.specs import Limits
from sandherd.settings.remote import FACTORS
from spawner.runtimes.boxes.furnishing import HERD
from spawner.runtimes.boxes.provider import Address, Box, BoxState, ProgramEnd, ProviderError, ProviderFault
from spawner.runtimes.remote.scripts import Look

_MIB_PER_GB: Final = 1024
_GONE: Final = frozenset({"stopped"})
_FALLEN: Final = frozenset({"failed", "crashloopbackoff"})
_CLASSES: Final = {"sysbox": "sysbox-runc", "gvisor": "gvisor"}
_NO_IMAGE: Final = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
_WORK: Final = {12_000: "work-1", 12_001: "work-2"}
"""The ports of a runtime that OpenHands' own programs count on, and what each is called in a URL."""
_PORTS: Final = range(1024, 65_536)
_PLAIN: Final = re.compile(r"https?://[^\s@?#/]+(/[^\s@?#]*)?")
"""A URL that can hold no secret."""
_LONGEST: Final = 56
"""Of a session's name: it becomes part of a host's name, and others are made of it."""


def _lower(value: Any) -> str:
    return str(value or "").lower()


def _none_as_empty(value: Any) -> Any:
    return [] if value is None else value


def _hosts(value: Any) -> Any:
    return {str(url): port for url, port in value.items() if isinstance(port, int)} if isinstance(value, dict) else None


Word = Annotated[str, BeforeValidator(_lower)]


class Runtime(BaseModel):
    """A runtime, as the Runtime API shows it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str = Field(validation_alias=AliasChoices("runtime_id", "id"))
    session_id: str = ""
    url: str | None = None
    key: str | None = Field(None, validation_alias="session_api_key", repr=False)
    work_hosts: Annotated[dict[str, int] | None, BeforeValidator(_hosts)] = None
    """URLs of other servers in it, and the port of each; None: it says nothing of them."""
    status: Word = ""
    pod_status: Word = ""
    restart_count: Annotated[int, BeforeValidator(lambda value: value or 0)] = 0
    restart_reasons: Annotated[list[Any], BeforeValidator(_none_as_empty)] = []
    container_statuses: Annotated[list[Any], BeforeValidator(_none_as_empty)] = []

    @property
    def gone(self) -> bool:
        """Whether nothing is there any more."""
        return self.status in _GONE

    @property
    def ready(self) -> bool:
        """Whether its agent server is said to answer. Some answers tell of the pod, some do not."""
        return self.status == "running" and self.pod_status in {"ready", ""}

    @property
    def ports(self) -> dict[int, str]:
        """The ports that are reached from outside, and where. What says nothing of them does as OpenHands expects."""
        if self.work_hosts is None:
            return {port: _beside(self.url, self.id, name) for port, name in _WORK.items()} if self.url else {}
        found = {port: url.rstrip("/") for url, port in self.work_hosts.items() if _PLAIN.fullmatch(url)}
        return {port: url for port, url in found.items() if port in _PORTS}

    @property
    def fallen(self) -> bool:
        """Whether it will not come by itself."""
        return self.status == "error" or self.pod_status in _FALLEN

    @property
    def lacks_image(self) -> bool:
        """Whether it waits for an image that can't be had."""
        return any(word in str(self.container_statuses) for word in _NO_IMAGE)

    @property
    def reasons(self) -> str:
        """Why it was begun anew, for people."""
        return ", ".join(dict.fromkeys(str(reason) for reason in self.restart_reasons))

    @property
    def out_of_memory(self) -> bool:
        """Whether it was ended for its memory."""
        return "oomkill" in self.reasons.replace(" ", "").lower()


def _beside(url: str, runtime: str, name: str) -> str:
    """Where OpenHands looks for another server of a runtime: in a path beside it, or at a host of its own."""
    parts = urlsplit(url)
    if parts.path.split("/")[1:2] == [runtime]:
        return urlunsplit((parts.scheme, parts.netloc, f"/{runtime}/{name}", "", ""))
    return urlunsplit((parts.scheme, f"{name}-{parts.netloc}", parts.path.rstrip("/"), "", ""))


class Listing(BaseModel):
    """All runtimes of an account that are there."""

    model_config = ConfigDict(extra="ignore")

    runtimes: list[Runtime]


class BashOutput(BaseModel):
    """How a command line ended at an agent server."""

    model_config = ConfigDict(extra="ignore")

    exit_code: int | None = None
    stdout: str | None = None
    stderr: str | None = None


def session(herd: str, name: str) -> str:
    """What a box is called at the Runtime API, which knows no labels: its herd stands in its name."""
    called = f"{herd}-{name}"
    if len(called) > _LONGEST:
        told = f"{name} is too long a name: with its herd the Runtime API takes {_LONGEST} letters"
        raise ProviderError(ProviderFault.REFUSED, f"remote: {told}")
    return called


def name_of(session_id: str) -> tuple[str, str] | None:
    """A box's herd and name by its session; None for somebody else's."""
    herd, found, name = session_id.partition("-")
    return (herd, name) if found and name.startswith("sbx-") else None


def is_of(runtime: Runtime, herd: str | None) -> bool:
    """Whether it is a box of this herd; None: of any."""
    found = name_of(runtime.session_id)
    return found is not None and herd in {None, found[0]}


def address(runtime: Runtime, name: str, port: int) -> Address:
    """Where a port of it is reached. Raises `ProviderError` for one that there is no way to."""
    if not runtime.ready:
        told = f"remote: {name} is {runtime.status}: no port of it is reached now"
        raise ProviderError(ProviderFault.TRANSIENT, told)
    if port not in runtime.ports:
        only = ", ".join(map(str, sorted(runtime.ports))) or "none"
        told = f"remote: there is no way to port {port} of {name}; the Runtime API lets in to {only}"
        raise ProviderError(ProviderFault.REFUSED, told)
    return Address(runtime.ports[port])


def factor(limits: Limits, least: int, step_gb: float) -> int:
    """How large a runtime has to be. Raises `ProviderError` for more than there is."""
    for size in FACTORS:
        if size >= least and limits.memory_mb <= size * step_gb * _MIB_PER_GB:
            return size
    most = FACTORS[-1] * step_gb
    told = f"{limits.memory_mb} MiB of memory are more than the largest runtime has: {most:g} GB"
    raise ProviderError(ProviderFault.REFUSED, f"remote: {told}")


def runtime_class(name: str | None) -> dict[str, str]:
    """As the Runtime API calls it."""
    return {"runtime_class": _CLASSES[name]} if name else {}


def box(runtime: Runtime, look: Look | None, *, paused_is_aside: bool) -> Box:
    """A runtime, and how its program fares if its agent server says it, as a box.

    What is said in the box may be its agent's word: whose it is says its session, and only what has ended is aside.
    """
    herd, name = name_of(runtime.session_id) or ("", runtime.session_id)
    seen = look or Look()
    lost, mute = _lost(runtime, look), look is None and runtime.ready
    end = seen.end or lost
    return Box(
        name=name,
        id=runtime.id,
        labels={**seen.labels, HERD: herd},
        state=_state(runtime, seen, end, mute=mute),
        created_at=seen.made or datetime.fromtimestamp(0, UTC),
        runs=max(seen.runs, 1 if lost or mute else 0),
        end=end,
        problem=_problem(runtime, look),
        aside=(seen.aside and end is not None) or (runtime.status == "paused" and paused_is_aside),
    )


def surely_ready(runtime: Runtime) -> Runtime:
    """The same. Raises `ProviderError` (`transient`) for one in which nothing can be done now: it is not done then."""
    if not runtime.ready:
        told = f"remote: {runtime.session_id} is not ready: {runtime.pod_status or runtime.status or 'nobody says why'}"
        raise ProviderError(ProviderFault.TRANSIENT, told)
    return runtime


def _state(runtime: Runtime, seen: Look, end: ProgramEnd | None, *, mute: bool) -> BoxState:
    if runtime.fallen:
        return BoxState.FAILED
    if end:
        return BoxState.STOPPED
    if seen.frozen:
        return BoxState.PAUSED
    return BoxState.RUNNING if seen.runs or mute else BoxState.CREATING


def _lost(runtime: Runtime, look: Look | None) -> ProgramEnd | None:
    """How a program ended of which nobody has written it down; None if it goes on, as far as can be known."""
    if runtime.status == "paused":
        return ProgramEnd(None, reason="its runtime is paused, which ends its processes")
    if runtime.fallen:
        return ProgramEnd(None, out_of_memory=runtime.out_of_memory, reason=_problem(runtime, look))
    unkept = look is not None and look.runs and not look.kept
    if look is not None and runtime.restart_count and (unkept or not look.runs):
        because = f"its runtime was started anew: {runtime.reasons or 'nobody says why'}"
        return ProgramEnd(None, out_of_memory=runtime.out_of_memory, reason=because)
    return ProgramEnd(None, reason="its runtime has lost its processes") if unkept else None


def _problem(runtime: Runtime, look: Look | None) -> str:
    if runtime.fallen:
        why = f": {runtime.reasons}" if runtime.reasons else ""
        return f"its pod is {runtime.pod_status or runtime.status}{why}"
    return "" if look or runtime.status == "paused" else "its agent server does not answer"


def said(body: Any) -> str:
    """What an answer says that is an error, in one line."""
    if isinstance(body, Mapping):
        for name in ("message", "detail", "error"):
            if body.get(name):
                return " ".join(str(body[name]).split())[:300]
    return " ".join(str(body or "").split())[:300]
