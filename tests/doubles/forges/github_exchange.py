"""An admitted request to GitHub's API: its repository, its sender and its body."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from tests.doubles.forges.calls import Call
from tests.doubles.forges.forge_state import Issue, Pull, Repository, Token
from tests.doubles.forges.github_pull_shapes import PullShapes, error
from tests.doubles.forges.replies import Reply

if TYPE_CHECKING:
    from tests.doubles.forges.github import GitHub

MAX_PAGE: Final = 100
_PAGE: Final = 30


@dataclass
class Exchange:
    """The parts of a request that a route needs."""

    github: "GitHub"
    call: Call
    token: Token | None
    repository_or_none: Repository | None

    @property
    def repository(self) -> Repository:
        """The repository in the path."""
        assert self.repository_or_none is not None
        return self.repository_or_none

    @property
    def sender(self) -> Token:
        """The token of the request."""
        assert self.token is not None
        return self.token

    @property
    def shapes(self) -> PullShapes:
        """The JSON of responses."""
        return self.github.shapes

    @property
    def body(self) -> dict[str, Any]:
        """The object in the request's body; empty without a body."""
        return self.call.body if isinstance(self.call.body, dict) else {}

    def parameter(self, name: str) -> str:
        """A parameter of the path."""
        return self.call.parameters[name]

    def pull(self) -> Pull:
        """The pull request in the path. Raises 404."""
        found = self.repository.pulls.get(int(self.parameter("pull_number")))
        if found is None:
            raise error(404, "Not Found")
        return found

    def issue(self) -> Issue:
        """The issue or pull request in the path. Raises 404."""
        found = self.repository.issues.get(int(self.parameter("issue_number")))
        if found is None:
            raise error(404, "Not Found")
        return found

    def page(self, every: Sequence[Any], shape: Callable[[Any], Any]) -> tuple[list[Any], dict[str, str]]:
        """The requested page of a list, and the header with links to the other pages."""
        size = min(MAX_PAGE, int(self.call.query.get("per_page", _PAGE)))
        number = int(self.call.query.get("page", 1))
        last = max(1, -(-len(every) // size))
        wanted = {"next": number + 1, "last": last} if number < last else {}
        if number > 1:
            wanted |= {"prev": number - 1, "first": 1}
        links = [f'<{self._url(page)}>; rel="{name}"' for name, page in wanted.items()]
        start = (number - 1) * size
        return [shape(one) for one in every[start : start + size]], {"Link": ", ".join(links)} if links else {}

    def _url(self, page: int) -> str:
        query = {**self.call.query, "page": str(page)}
        return f"{self.github.api_url}{self.call.path}?{urlencode(query)}"

    def listed(self, every: Sequence[Any], shape: Callable[[Any], Any]) -> Reply:
        """Respond with a page of a list."""
        shown, headers = self.page(every, shape)
        return Reply(200, shown, headers)


@dataclass(frozen=True)
class Route:
    """A route: the function that responds to an operation, and the permission that it needs."""

    respond: Callable[[Exchange], Reply]
    permission: str = "metadata"
    level: str = "read"
