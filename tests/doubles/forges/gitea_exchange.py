"""An admitted request to Gitea's API."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tests.doubles.forges.calls import Call
from tests.doubles.forges.forge_state import Issue, Pull, Repository, Token
from tests.doubles.forges.gitea_shapes import GiteaShapes
from tests.doubles.forges.replies import ApiError, Reply

if TYPE_CHECKING:
    from tests.doubles.forges.gitea import Gitea

_MAX_PAGE: Final = 50
_PAGE: Final = 30


def refused(status: int, message: str) -> ApiError:
    """An error as Gitea sends it."""
    return ApiError(status, {"message": message, "url": "http://127.0.0.1/api/swagger"})


@dataclass
class Exchange:
    """The parts of a request that a route needs."""

    gitea: "Gitea"
    call: Call
    token: Token
    repository_or_none: Repository | None

    @property
    def repository(self) -> Repository:
        """The repository in the path."""
        assert self.repository_or_none is not None
        return self.repository_or_none

    @property
    def shapes(self) -> GiteaShapes:
        """The JSON of responses."""
        return self.gitea.shapes

    @property
    def body(self) -> dict[str, Any]:
        """The object in the request's body; empty without a body."""
        return self.call.body if isinstance(self.call.body, dict) else {}

    def issue(self) -> Issue:
        """The issue or pull request in the path. Raises 404."""
        found = self.repository.issues.get(int(self.call.parameters["index"]))
        if found is None:
            raise refused(404, "The target couldn't be found.")
        return found

    def pull(self) -> Pull:
        """The pull request in the path. Raises 404."""
        found = self.issue()
        if not isinstance(found, Pull):
            raise refused(404, "The target couldn't be found.")
        return found

    def listed(self, every: Sequence[Any], shape: Callable[[Any], Any]) -> Reply:
        """Respond with a page of a list."""
        size = min(_MAX_PAGE, int(self.call.query.get("limit", _PAGE)))
        start = (int(self.call.query.get("page", 1)) - 1) * size
        return Reply(200, [shape(one) for one in every[start : start + size]], {"X-Total-Count": str(len(every))})


@dataclass(frozen=True)
class Route:
    """A route: the function that responds to an operation, and the scope that it needs."""

    respond: Callable[[Exchange], Reply]
    scope: str = "repository"
    level: str = "read"
