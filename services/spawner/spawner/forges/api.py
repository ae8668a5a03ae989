"""The API of one repository's forge: gidgethub's requests, over an HTTP client with limits.

gidgethub builds the URLs, sends conditional requests (a response 304 does not count for GitHub's rate limit) and reads
pages. Its parts that are only for GitHub (rate limits, errors, credentials) are replaced here, so that it also serves
GitLab and Gitea, whose requests have the same form.

The costs of libraries in the spawner, besides those of aiohttp (200 ms, 10.5 MB, 90 modules), as CPU time and memory:

| library | import | memory | modules | distributions |
| --- | --- | --- | --- | --- |
| gidgethub 6.0.0 | 2 ms | 0.0 MB | 8 | 7, of which an App needs 4 |
| gidgethub 6.0.0, to sign as an App (cryptography) | 90 ms | 8.0 MB | 63 | |
| githubkit 0.16.1 | 230 to 280 ms | 9.0 to 11.7 MB | 168 to 184 | 17, and 50 MB of schemas |
| python-gitlab 8.6.0 | 140 ms | 5.4 MB | 227 | 7 |

githubkit has its own HTTP stack (httpx), and its newest version can't be imported with the newest hishel, which is
installed with it. python-gitlab is synchronous and has a third stack (requests). Its requests in threads can't be
cancelled, and it neither limits the size of responses nor sends conditional requests. For Gitea, no maintained library
is smaller than these few requests.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from gidgethub.abc import GitHubAPI
from pydantic import BaseModel, TypeAdapter, ValidationError

from spawner.forges.credentials import Token, TokenSource
from spawner.forges.faults import MASK, ForgeError, ForgeFault, refusal
from spawner.forges.http_client import HttpClient, Reply
from spawner.forges.locations import ForgeKind, ForgeRepository
from spawner.forges.rate_limits import ForgeAccount
from spawner.forges.reply_cache import ReplyCache

_ACCEPT: Final = {ForgeKind.GITHUB: "application/vnd.github+json"}
_GITHUB_VERSION: Final = "2022-11-28"
"""A version of GitHub's REST API that GitHub Enterprise Server also supports."""
_MAX_CACHED_BYTES: Final = 128 * 1024
"""The maximum size of a response that is stored for conditional requests."""
_MAX_ITEMS: Final = 1000
"""Maximum entries of a list."""
_MAX_PAGES: Final = 50
"""Maximum pages of a list. The pages are limited, too, because each may have 4 MiB."""
_SUCCESS: Final = frozenset({200, 201, 202, 204})
_UNAUTHORIZED, _NOT_MODIFIED = 401, 304
ModelT = TypeVar("ModelT", bound=BaseModel)


class ForgeApi(GitHubAPI):
    """Requests about one repository, with the credential for it.

    `accounts`: the accounts of the host's tokens by `Token.account`. `replies`: earlier replies, for conditional
    requests.
    """

    def __init__(
        self,
        repository: ForgeRepository,
        tokens: TokenSource,
        http: HttpClient,
        accounts: dict[str, ForgeAccount],
        replies: ReplyCache | None = None,
    ) -> None:
        super().__init__("sandherd", cache=replies, base_url=repository.host.api_url)
        self.repository = repository
        self._tokens = tokens
        self._http = http
        self._accounts = accounts
        self._kind = repository.host.kind
        self._repository_values = {"owner": repository.owner, "repo": repository.name, "project": repository.path}

    # --- requests ------------------------------------------------------------------------------------------------

    async def get(self, model: type[ModelT], path: str, **values: Any) -> ModelT:
        """GET one object. Raises `ForgeError`.

        `path` is a URI template (RFC 6570) of these values, and of the repository's `owner`, `repo` and `project`.
        """
        return read_as(model, await self._call("GET", path, values), path)

    async def get_all(
        self,
        model: type[ModelT],
        path: str,
        values: Mapping[str, str | int],
        *,
        key: str = "items",
        first_page: bool = False,
    ) -> list[ModelT]:
        """GET a list: all its pages, or only the first one. `key`: the field with the list, if a page is an object.

        Raises `ForgeError`, also for a list that is too long, because decisions need all entries.
        """
        items: list[Any] = []
        next_page: str | None = path
        pages = 0
        while next_page:
            pages += 1
            page, next_page, _ = await self._page(next_page, values, path)
            entries = page.get(key) if isinstance(page, dict) else page
            if not isinstance(entries, list) or (next_page and not entries):
                raise ForgeError(ForgeFault.UNAVAILABLE, f"GET {path}: the response has no list")
            items += entries
            next_page = None if first_page else next_page
            if next_page and pages >= _MAX_PAGES:
                raise ForgeError(ForgeFault.REFUSED, f"GET {path}: the list has more than {_MAX_PAGES} pages")
            if len(items) > _MAX_ITEMS:
                raise ForgeError(ForgeFault.REFUSED, f"GET {path}: the list has more than {_MAX_ITEMS} entries")
        return [read_as(model, item, path) for item in items]

    async def send(self, method: str, path: str, body: Mapping[str, Any], **values: Any) -> Any:
        """Send a write, and return the parsed response. The write may take effect even if `ForgeError` is raised."""
        return await self._call(method, path, values, dict(body))

    async def _page(self, url: str, values: Mapping[str, Any], path: str) -> tuple[Any, str | None, int]:
        try:
            return await self._make_request("GET", url, {**self._repository_values, **values}, b"", self._accept)
        except (ValueError, RecursionError, LookupError) as error:
            kind = type(error).__name__
        raise ForgeError(ForgeFault.UNAVAILABLE, f"GET {path}: the response can't be read ({kind})")

    async def _call(self, method: str, path: str, values: Mapping[str, Any], body: Any = b"") -> Any:
        try:
            data, _, _ = await self._make_request(
                method, path, {**self._repository_values, **values}, body, self._accept
            )
        except (ValueError, RecursionError, LookupError) as error:
            kind = type(error).__name__
        else:
            return data
        raise ForgeError(ForgeFault.UNAVAILABLE, f"{method} {path}: the response can't be read ({kind})")

    @property
    def _accept(self) -> str:
        return _ACCEPT.get(self._kind, "application/json")

    # --- methods that gidgethub calls ----------------------------------------------------------------------------

    async def sleep(self, seconds: float) -> None:
        """Not called, because the caller of the API waits (`ForgeError.retry_after`)."""

    async def _request(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes = b""
    ) -> tuple[int, Mapping[str, str], bytes]:
        self._check_target(url)
        token = await self._tokens.token(self.repository)
        reply = await self._exchange(method, url, headers, body, token)
        if reply.status == _UNAUTHORIZED:
            other = await self._tokens.renew(self.repository, token)
            if other is not None:
                token = other
                reply = await self._exchange(method, url, headers, body, token)
        if reply.status in _SUCCESS or (reply.status == _NOT_MODIFIED and "if-none-match" in headers):
            return reply.status, _headers_for_gidgethub(reply), reply.body.replace(token.value.encode(), MASK.encode())
        request = f"{method} {_path(url)}"
        raise refusal(request, reply.status, reply.headers, reply.parsed(), datetime.now(UTC), secret=token.value)

    async def _exchange(self, method: str, url: str, headers: Mapping[str, str], body: bytes, token: Token) -> Reply:
        account = self._accounts.setdefault(token.account, ForgeAccount())
        version = {"x-github-api-version": _GITHUB_VERSION} if self._kind is ForgeKind.GITHUB else {}
        async with account.request(write=method != "GET"):
            reply = await self._http.request(method, url, {**headers, **version, **token.headers(self._kind)}, body)
            now = account.clock()
            account.limit = account.limit.after(reply.headers, now)
            if reply.status not in _SUCCESS:
                refused = refusal("", reply.status, reply.headers, reply.parsed(), now)
                if refused.retry_after is not None:
                    account.limit = account.limit.blocked(refused.retry_after, now)
        return reply

    def _check_target(self, url: str) -> None:
        """Raise `ForgeError` if the URL of a list's next page is not at the forge. It would get the credential."""
        api, target = urlsplit(self.base_url), urlsplit(url)
        if (target.scheme, target.netloc) != (api.scheme, api.netloc) or ".." in target.path.split("/"):
            raise ForgeError(ForgeFault.REFUSED, f"the next page is not at {api.netloc}")


def read_as(model: type[ModelT], data: Any, path: str) -> ModelT:
    """The response as an instance of the model. Raises `ForgeError` (unavailable) if it does not match the model."""
    try:
        return TypeAdapter(model).validate_python(data)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "the whole response"
        text = f"{path}: the response is not as the forge documents it: {field}: {first['type']}"
    raise ForgeError(ForgeFault.UNAVAILABLE, text)


def _headers_for_gidgethub(reply: Reply) -> Mapping[str, str]:
    """The headers that gidgethub reads. Without `etag`, as for large responses, it does not store the response."""
    names = ("link", "etag") if len(reply.body) <= _MAX_CACHED_BYTES else ("link",)
    headers = {name: reply.headers[name] for name in names if name in reply.headers}
    return {**headers, "content-type": "application/json"}


def _path(url: str) -> str:
    """The path of a URL for a message. Its query may contain a secret."""
    return urlsplit(url).path[:200]
