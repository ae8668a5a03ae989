"""HTTP clients of the Runtime API, with the account's key, and of the agent server in a box, with the box's key."""

import io
import json
from collections.abc import Mapping
from typing import Any, Final, TypeVar
from urllib.parse import quote

import aiohttp
from pydantic import BaseModel

from spawner.runtimes.boxes.provider import ProviderError, ProviderFault
from spawner.runtimes.boxes.retry import DEFAULT_LIMITS, RetryLimits, with_retry
from spawner.runtimes.remote.faults import faults, mask, refusal
from spawner.runtimes.remote.replies import BashOutput, RemoteRuntimeState, RuntimeList, error_message

_ERROR: Final = 400
_FAULTS_BY_EXIT_STATUS: Final = {
    None: ProviderFault.TIMED_OUT,
    -1: ProviderFault.TIMED_OUT,
    44: ProviderFault.NOT_FOUND,
}
"""The faults for exit statuses: None and -1 if the agent server reports a timeout, 44 for missing files (box.sh)."""
_CONNECT_SECONDS: Final = 10.0
_MARGIN_SECONDS: Final = 15.0
"""Additional time to wait for a reply after a command's own timeout."""
_MAX_BYTES: Final = 64 * 1024 * 1024
"""The default maximum size of a reply in bytes."""
ReplyT = TypeVar("ReplyT", bound=BaseModel)


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
        **arguments: Any,
    ) -> bytes:
        """Send a request, and return the reply's body. Raises `ProviderError`, also for more than `max_bytes` bytes.

        `what`: the action, for the message of an error. `key`: the header with the key.
        """
        timeout = aiohttp.ClientTimeout(total=seconds or self.timeout, connect=_CONNECT_SECONDS)
        with faults(what):
            async with self._session.request(
                method, url, headers=key, timeout=timeout, allow_redirects=False, **arguments
            ) as response:
                if response.status >= _ERROR:
                    text = error_message(_parse_json(await response.content.read(_MAX_BYTES)))
                    raise refusal(what, response.status, mask(text, key.values()), response.headers)
                return await _body(response, what, max_bytes)

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()


async def _body(response: aiohttp.ClientResponse, what: str, max_bytes: int) -> bytes:
    if (response.content_length or 0) > max_bytes:
        message = f"remote: {what}: the reply has {response.content_length} bytes; the limit is {max_bytes}"
        raise ProviderError(ProviderFault.REFUSED, message)
    parts, size = [], 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > max_bytes:
            raise ProviderError(ProviderFault.REFUSED, f"remote: {what}: the reply exceeds {max_bytes} bytes")
        parts.append(part)
    return b"".join(parts)


def _parse_json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode(errors="replace")


class RuntimeApi:
    """The Runtime API. All requests of this class are safe to retry."""

    def __init__(self, http: HttpSession, url: str, key: str, retries: RetryLimits = DEFAULT_LIMITS) -> None:
        self._http = http
        self._url = url.rstrip("/")
        self._key = {"X-API-Key": key}
        self._retries = retries

    async def start(self, parameters: Mapping[str, Any], seconds: float) -> None:
        """Start a runtime, unless one exists for this session."""
        session = str(parameters["session_id"])
        what, url = f"starting {session}", f"{self._url}/start"

        async def once() -> None:
            # The runtime may exist, because the reply to an earlier try may have been lost.
            if await self.of_session(session) is None:
                await self._http.request(what, "POST", url, self._key, json=dict(parameters), seconds=seconds)

        await with_retry(once, self._retries)

    async def of_session(self, session: str) -> RemoteRuntimeState | None:
        """The runtime of a session, or None."""
        path = f"/sessions/{quote(session, safe='')}"
        try:
            runtime = await self._get(f"looking for {session}", path, RemoteRuntimeState)
        except ProviderError as error:
            if error.fault is ProviderFault.NOT_FOUND:
                return None
            raise
        return None if runtime.removed else runtime.model_copy(update={"session_id": session})

    async def list_runtimes(self) -> list[RemoteRuntimeState]:
        """All existing runtimes of this account."""
        listing = await self._get("listing runtimes", "/list", RuntimeList)
        return [runtime for runtime in listing.runtimes if not runtime.removed]

    async def has_image(self, image: str) -> bool:
        """Whether the API can start runtimes from an image; True if it does not support this query."""
        try:
            response = await self._request(
                f"checking for image {image}", "GET", "/image_exists", params={"image": image}
            )
        except ProviderError as error:
            if error.fault is ProviderFault.NOT_FOUND:
                return True
            raise
        reply = _parse_json(response)
        return not (isinstance(reply, Mapping) and reply.get("exists") is False)

    async def change_state(self, runtime: RemoteRuntimeState, action: str) -> None:
        """`stop`, `pause` or `resume` a runtime. Does nothing if the runtime no longer exists."""
        what, path = f"{action} {runtime.session_id}", f"/{action}"
        try:
            await self._request(what, "POST", path, json={"runtime_id": runtime.id})
        except ProviderError as error:
            if error.fault is not ProviderFault.NOT_FOUND:
                raise

    async def _get(self, what: str, path: str, model: type[ReplyT]) -> ReplyT:
        body = await self._request(what, "GET", path)
        with faults(what):
            return model.model_validate_json(body)

    async def _request(self, what: str, method: str, path: str, **arguments: Any) -> bytes:
        url = f"{self._url}{path}"
        return await with_retry(lambda: self._http.request(what, method, url, self._key, **arguments), self._retries)


class AgentServer:
    """The OpenHands agent server in one box."""

    def __init__(self, http: HttpSession, runtime: RemoteRuntimeState, retries: RetryLimits = DEFAULT_LIMITS) -> None:
        self._http = http
        self._name = runtime.session_id
        self._url = (runtime.url or "").rstrip("/")
        self._key = {"X-Session-API-Key": runtime.key} if runtime.key else {}
        self._retries = retries

    async def is_healthy(self) -> bool:
        """Whether the agent server responds to a health check."""
        try:
            await self._http.request(
                f"health of {self._name}", "GET", f"{self._url}/health", {}, seconds=_CONNECT_SECONDS
            )
        except ProviderError:
            return False
        return True

    async def bash(self, line: str, seconds: float = 60.0) -> BashOutput:
        """Run a command line to its end, without retries."""
        parameters = {"command": line, "cwd": "/", "timeout": max(1, round(seconds))}
        url = f"{self._url}/api/bash/execute_bash_command"
        what, timeout = f"running a command in {self._name}", seconds + _MARGIN_SECONDS
        body = await self._http.request(what, "POST", url, self._key, json=parameters, seconds=timeout)
        with faults(what):
            return BashOutput.model_validate_json(body)

    async def control(self, line: str, seconds: float = 60.0) -> str:
        """Run one of our own idempotent command lines, with retries, and return its output. Raises `ProviderError`."""
        result = await with_retry(lambda: self.bash(line, seconds), self._retries)
        if result.exit_code != 0:
            reason = error_message(result.stderr) or f"exit status {result.exit_code}"
            fault = _FAULTS_BY_EXIT_STATUS.get(result.exit_code, ProviderFault.REFUSED)
            raise ProviderError(fault, f"remote: {self._name}: {reason}")
        return result.stdout or ""

    async def upload(self, path: str, content: bytes) -> None:
        """Write a file."""
        what = f"writing a file into {self._name}"

        async def once() -> bytes:
            form = aiohttp.FormData()
            form.add_field("file", io.BytesIO(content), filename="file", content_type="application/octet-stream")
            url = f"{self._url}/api/file/upload"
            return await self._http.request(what, "POST", url, self._key, params={"path": path}, data=form)

        await with_retry(once, self._retries)

    async def download(self, path: str, max_bytes: int) -> bytes:
        """The content of a file. Raises `not_found` if it is missing, `refused` if it is no file or too large."""
        url, what = f"{self._url}/api/file/download", f"reading {path} of {self._name}"
        return await with_retry(
            lambda: self._http.request(what, "GET", url, self._key, params={"path": path}, max_bytes=max_bytes),
            self._retries,
        )
