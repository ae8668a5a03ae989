"""Asking over HTTP: the Runtime API by its account's key, and the agent server in a box by that box's own."""

import io
import json
from collections.abc import Mapping
from typing import Any, Final, TypeVar
from urllib.parse import quote

import aiohttp
from pydantic import BaseModel

from spawner.runtimes.boxes.provider import ProviderError, ProviderFault
from spawner.runtimes.boxes.retrying import USUAL, Patience, persistently
from spawner.runtimes.remote.answers import BashOutput, Listing, Runtime, said
from spawner.runtimes.remote.faults import faults, refusal, without

_ERROR: Final = 400
_ENDS: Final = {None: ProviderFault.TIMED_OUT, -1: ProviderFault.TIMED_OUT, 44: ProviderFault.NOT_FOUND}
"""What the exit statuses of box.sh say, and the agent server's own for a command whose time was over."""
_CONNECT: Final = 10.0
_MARGIN: Final = 15.0
"""How much longer than a command may take its answer is waited for."""
_MOST: Final = 64 * 1024 * 1024
"""More than an answer that is read as a whole ever has."""
AnswerT = TypeVar("AnswerT", bound=BaseModel)


class Http:
    """Connections, and what holds for every call. No redirect is followed: keys go only where they belong."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())

    async def ask(
        self,
        what: str,
        method: str,
        url: str,
        key: Mapping[str, str],
        *,
        most: int = _MOST,
        seconds: float = 0,
        **more: Any,
    ) -> bytes:
        """The body of an answer of at most `most` bytes. Raises `ProviderError`."""
        waits = aiohttp.ClientTimeout(total=seconds or self.timeout, connect=_CONNECT)
        with faults(what):
            async with self._session.request(
                method, url, headers=key, timeout=waits, allow_redirects=False, **more
            ) as answer:
                if answer.status >= _ERROR:
                    text = said(_parsed(await answer.content.read(_MOST)))
                    raise refusal(what, answer.status, without(text, key.values()), answer.headers)
                return await _body(answer, what, most)

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()


async def _body(answer: aiohttp.ClientResponse, what: str, most: int) -> bytes:
    if (answer.content_length or 0) > most:
        told = f"remote: {what}: it weighs {answer.content_length} bytes; the limit is {most}"
        raise ProviderError(ProviderFault.REFUSED, told)
    parts, size = [], 0
    async for part in answer.content.iter_any():
        size += len(part)
        if size > most:
            raise ProviderError(ProviderFault.REFUSED, f"remote: {what}: it is larger than {most} bytes")
        parts.append(part)
    return b"".join(parts)


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode(errors="replace")


class RuntimeApi:
    """The Runtime API. All that it is asked here may be asked again."""

    def __init__(self, http: Http, url: str, key: str, patience: Patience = USUAL) -> None:
        self._http = http
        self._url = url.rstrip("/")
        self._key = {"X-API-Key": key}
        self._patience = patience

    async def start(self, wanted: Mapping[str, Any], seconds: float) -> None:
        """Have a runtime started, unless there is one of this session; an answer that is lost is asked for again."""
        session = str(wanted["session_id"])
        what, url = f"starting {session}", f"{self._url}/start"

        async def started() -> None:
            if await self.of_session(session) is None:
                await self._http.ask(what, "POST", url, self._key, json=dict(wanted), seconds=seconds)

        await persistently(started, self._patience)

    async def of_session(self, session: str) -> Runtime | None:
        """The runtime of a session."""
        path = f"/sessions/{quote(session, safe='')}"
        try:
            found = await self._get(f"looking for {session}", path, Runtime)
        except ProviderError as error:
            if error.fault is ProviderFault.NOT_FOUND:
                return None
            raise
        return None if found.gone else found.model_copy(update={"session_id": session})

    async def all(self) -> list[Runtime]:
        """All runtimes of this account that are there."""
        found = await self._get("listing runtimes", "/list", Listing)
        return [runtime for runtime in found.runtimes if not runtime.gone]

    async def has_image(self, image: str) -> bool:
        """Whether it can make runtimes of an image. One that can't say so is believed to."""
        try:
            answer = await self._ask(f"looking for image {image}", "GET", "/image_exists", params={"image": image})
        except ProviderError as error:
            if error.fault is ProviderFault.NOT_FOUND:
                return True
            raise
        found = _parsed(answer)
        return not (isinstance(found, Mapping) and found.get("exists") is False)

    async def tell(self, runtime: Runtime, what: str) -> None:
        """`stop`, `pause` or `resume` a runtime. It is not there any more: nothing happens."""
        try:
            await self._ask(f"{what} {runtime.session_id}", "POST", f"/{what}", json={"runtime_id": runtime.id})
        except ProviderError as error:
            if error.fault is not ProviderFault.NOT_FOUND:
                raise

    async def _get(self, what: str, path: str, kind: type[AnswerT]) -> AnswerT:
        body = await self._ask(what, "GET", path)
        with faults(what):
            return kind.model_validate_json(body)

    async def _ask(self, what: str, method: str, path: str, **more: Any) -> bytes:
        url = f"{self._url}{path}"
        return await persistently(lambda: self._http.ask(what, method, url, self._key, **more), self._patience)


class AgentServer:
    """The OpenHands agent server in one box."""

    def __init__(self, http: Http, runtime: Runtime, patience: Patience = USUAL) -> None:
        self._http = http
        self._name = runtime.session_id
        self._url = (runtime.url or "").rstrip("/")
        self._key = {"X-Session-API-Key": runtime.key} if runtime.key else {}
        self._patience = patience

    async def is_well(self) -> bool:
        """Whether it answers."""
        try:
            await self._http.ask(f"health of {self._name}", "GET", f"{self._url}/health", {}, seconds=_CONNECT)
        except ProviderError:
            return False
        return True

    async def bash(self, line: str, seconds: float = 60.0) -> BashOutput:
        """Run a command line to its end, once: it is not asked again."""
        wanted = {"command": line, "cwd": "/", "timeout": max(1, round(seconds))}
        url = f"{self._url}/api/bash/execute_bash_command"
        what = f"running a command in {self._name}"
        body = await self._http.ask(what, "POST", url, self._key, json=wanted, seconds=seconds + _MARGIN)
        with faults(what):
            return BashOutput.model_validate_json(body)

    async def control(self, line: str, seconds: float = 60.0) -> str:
        """Run one of our own command lines, each of which may be run again, and return what it prints."""
        ended = await persistently(lambda: self.bash(line, seconds), self._patience)
        if ended.exit_code != 0:
            why = said(ended.stderr) or f"it ended with {ended.exit_code}"
            fault = _ENDS.get(ended.exit_code, ProviderFault.REFUSED)
            raise ProviderError(fault, f"remote: {self._name}: {why}")
        return ended.stdout or ""

    async def upload(self, path: str, content: bytes) -> None:
        """Write a file."""
        what = f"putting a file into {self._name}"

        async def sent() -> bytes:
            form = aiohttp.FormData()
            form.add_field("file", io.BytesIO(content), filename="file", content_type="application/octet-stream")
            url = f"{self._url}/api/file/upload"
            return await self._http.ask(what, "POST", url, self._key, params={"path": path}, data=form)

        await persistently(sent, self._patience)

    async def download(self, path: str, most: int) -> bytes:
        """A file's content. Raises `not_found` for none, `refused` for what is none or is larger."""
        url, what = f"{self._url}/api/file/download", f"reading {path} of {self._name}"
        return await persistently(
            lambda: self._http.ask(what, "GET", url, self._key, params={"path": path}, most=most), self._patience
        )
