"""HTTP clients: of the Runtime API with the account's key, and of the agent server in a box with that box's key."""

import io
import json
from collections.abc import Mapping
from typing import Any, Final, TypeVar
from urllib.parse import quote

import aiohttp
from pydantic import BaseModel

from spawner.runtimes.boxes.provider import ProviderError, ProviderFault
from spawner.runtimes.boxes.retry import DEFAULT_LIMITS, RetryLimits, with_retry
from spawner.runtimes.remote.faults import faults, refusal, without
from spawner.runtimes.remote.replies import BashOutput, RemoteRuntimeState, RuntimeList, error_message

_ERROR: Final = 400
_ENDS: Final = {None: ProviderFault.TIMED_OUT, -1: ProviderFault.TIMED_OUT, 44: ProviderFault.NOT_FOUND}
"""The faults for exit statuses of box.sh, and for those that the agent server returns when a command timed out."""
_CONNECT: Final = 10.0
_MARGIN: Final = 15.0
"""Extra time to wait for a reply beyond a command's timeout, in seconds."""
_MAX_BYTES: Final = 64 * 1024 * 1024
"""The maximum size in bytes of a reply that is read as a whole."""
AnswerT = TypeVar("AnswerT", bound=BaseModel)


class HttpSession:
    """The HTTP session of all calls. Redirects are not followed, so that keys are not sent elsewhere."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())

    async def request(
        self,
        what: str,
        method: str,
        url: str,
        key: Mapping[str, str],
        *,
        max_bytes: int = _MAX_BYTES,
        seconds: float = 0,
        **more: Any,
    ) -> bytes:
        """Send a request; returns the reply's body, of at most `max_bytes` bytes. Raises `ProviderError`."""
        waits = aiohttp.ClientTimeout(total=seconds or self.timeout, connect=_CONNECT)
        with faults(what):
            async with self._session.request(
                method, url, headers=key, timeout=waits, allow_redirects=False, **more
            ) as answer:
                if answer.status >= _ERROR:
                    text = error_message(_parsed(await answer.content.read(_MAX_BYTES)))
                    raise refusal(what, answer.status, without(text, key.values()), answer.headers)
                return await _body(answer, what, max_bytes)

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()


async def _body(answer: aiohttp.ClientResponse, what: str, max_bytes: int) -> bytes:
    if (answer.content_length or 0) > max_bytes:
        message = f"remote: {what}: the reply has {answer.content_length} bytes; the limit is {max_bytes}"
        raise ProviderError(ProviderFault.REFUSED, message)
    parts, size = [], 0
    async for part in answer.content.iter_any():
        size += len(part)
        if size > max_bytes:
            raise ProviderError(ProviderFault.REFUSED, f"remote: {what}: the reply exceeds {max_bytes} bytes")
        parts.append(part)
    return b"".join(parts)


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode(errors="replace")


class RuntimeApi:
    """The Runtime API. All requests here are safe to retry."""

    def __init__(self, http: HttpSession, url: str, key: str, patience: RetryLimits = DEFAULT_LIMITS) -> None:
        self._http = http
        self._url = url.rstrip("/")
        self._key = {"X-API-Key": key}
        self._patience = patience

    async def start(self, wanted: Mapping[str, Any], seconds: float) -> None:
        """Start a runtime, unless one exists for this session. Retried if the reply was lost."""
        session = str(wanted["session_id"])
        what, url = f"starting {session}", f"{self._url}/start"

        async def started() -> None:
            if await self.of_session(session) is None:
                await self._http.request(what, "POST", url, self._key, json=dict(wanted), seconds=seconds)

        await with_retry(started, self._patience)

    async def of_session(self, session: str) -> RemoteRuntimeState | None:
        """The runtime of a session, or None."""
        path = f"/sessions/{quote(session, safe='')}"
        try:
            found = await self._get(f"looking for {session}", path, RemoteRuntimeState)
        except ProviderError as error:
            if error.fault is ProviderFault.NOT_FOUND:
                return None
            raise
        return None if found.removed else found.model_copy(update={"session_id": session})

    async def all(self) -> list[RemoteRuntimeState]:
        """All existing runtimes of this account."""
        found = await self._get("listing runtimes", "/list", RuntimeList)
        return [runtime for runtime in found.runtimes if not runtime.removed]

    async def has_image(self, image: str) -> bool:
        """Whether the API can start runtimes from an image; True if it does not support this query."""
        try:
            answer = await self._request(f"checking for image {image}", "GET", "/image_exists", params={"image": image})
        except ProviderError as error:
            if error.fault is ProviderFault.NOT_FOUND:
                return True
            raise
        found = _parsed(answer)
        return not (isinstance(found, Mapping) and found.get("exists") is False)

    async def change_state(self, runtime: RemoteRuntimeState, what: str) -> None:
        """`stop`, `pause` or `resume` a runtime. Does nothing if it no longer exists."""
        try:
            await self._request(f"{what} {runtime.session_id}", "POST", f"/{what}", json={"runtime_id": runtime.id})
        except ProviderError as error:
            if error.fault is not ProviderFault.NOT_FOUND:
                raise

    async def _get(self, what: str, path: str, kind: type[AnswerT]) -> AnswerT:
        body = await self._request(what, "GET", path)
        with faults(what):
            return kind.model_validate_json(body)

    async def _request(self, what: str, method: str, path: str, **more: Any) -> bytes:
        url = f"{self._url}{path}"
        return await with_retry(lambda: self._http.request(what, method, url, self._key, **more), self._patience)


class AgentServer:
    """The OpenHands agent server in one box."""

    def __init__(self, http: HttpSession, runtime: RemoteRuntimeState, patience: RetryLimits = DEFAULT_LIMITS) -> None:
        self._http = http
        self._name = runtime.session_id
        self._url = (runtime.url or "").rstrip("/")
        self._key = {"X-Session-API-Key": runtime.key} if runtime.key else {}
        self._patience = patience

    async def is_well(self) -> bool:
        """Whether the agent server responds to a health check."""
        try:
            await self._http.request(f"health of {self._name}", "GET", f"{self._url}/health", {}, seconds=_CONNECT)
        except ProviderError:
            return False
        return True

    async def bash(self, line: str, seconds: float = 60.0) -> BashOutput:
        """Run a command line to its end, without retries."""
        wanted = {"command": line, "cwd": "/", "timeout": max(1, round(seconds))}
        url = f"{self._url}/api/bash/execute_bash_command"
        what = f"running a command in {self._name}"
        body = await self._http.request(what, "POST", url, self._key, json=wanted, seconds=seconds + _MARGIN)
        with faults(what):
            return BashOutput.model_validate_json(body)

    async def control(self, line: str, seconds: float = 60.0) -> str:
        """Run one of our own idempotent command lines, with retries, and return its output."""
        ended = await with_retry(lambda: self.bash(line, seconds), self._patience)
        if ended.exit_code != 0:
            why = error_message(ended.stderr) or f"exit status {ended.exit_code}"
            fault = _ENDS.get(ended.exit_code, ProviderFault.REFUSED)
            raise ProviderError(fault, f"remote: {self._name}: {why}")
        return ended.stdout or ""

    async def upload(self, path: str, content: bytes) -> None:
        """Write a file."""
        what = f"writing a file into {self._name}"

        async def sent() -> bytes:
            form = aiohttp.FormData()
            form.add_field("file", io.BytesIO(content), filename="file", content_type="application/octet-stream")
            url = f"{self._url}/api/file/upload"
            return await self._http.request(what, "POST", url, self._key, params={"path": path}, data=form)

        await with_retry(sent, self._patience)

    async def download(self, path: str, max_bytes: int) -> bytes:
        """The content of a file. Raises `not_found` if there is none, `refused` if it is not a file or too large."""
        url, what = f"{self._url}/api/file/download", f"reading {path} of {self._name}"
        return await with_retry(
            lambda: self._http.request(what, "GET", url, self._key, params={"path": path}, max_bytes=max_bytes),
            self._patience,
        )
