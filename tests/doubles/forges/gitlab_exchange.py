"""An admitted request to GitLab's API."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tests.doubles.forges.calls import Call
from tests.doubles.forges.forge_state import Pull, Repository, Token
from tests.doubles.forges.gitlab_shapes import GitLabShapes
from tests.doubles.forges.replies import ApiError, Reply

if TYPE_CHECKING:
    from tests.doubles.forges.gitlab import GitLab

_MAX_PAGE: Final = 100
_PAGE: Final = 20


def refused(status: int, message: Any) -> ApiError:
    """An error as GitLab sends it: a text, or a list of texts."""
    return ApiError(status, {"message": message})


@dataclass
class Exchange:
    """The parts of a request that a route needs."""

    gitlab: "GitLab"
    call: Call
    token: Token
    project_or_none: Repository | None

    @property
    def project(self) -> Repository:
        """The project in the path."""
        assert self.project_or_none is not None
        return self.project_or_none

    @property
    def shapes(self) -> GitLabShapes:
        """The JSON of responses."""
        return self.gitlab.shapes

    @property
    def sent(self) -> dict[str, Any]:
        """The parameters of the query and of the body."""
        body = self.call.body if isinstance(self.call.body, dict) else {}
        return {**self.call.query, **body}

    def pull(self) -> Pull:
        """The merge request in the path. Raises 404."""
        found = self.project.pulls.get(int(self.call.parameters["iid"]))
        if found is None:
            raise refused(404, "404 Not found")
        return found

    def listed(self, every: Sequence[Any], shape: Callable[[Any], Any]) -> Reply:
        """Respond with a page of a list."""
        size = min(_MAX_PAGE, int(self.call.query.get("per_page", _PAGE)))
        number, last = int(self.call.query.get("page", 1)), max(1, -(-len(every) // size))
        headers = {
            "X-Page": str(number),
            "X-Per-Page": str(size),
            "X-Total": str(len(every)),
            "X-Total-Pages": str(last),
            "X-Next-Page": str(number + 1) if number < last else "",
        }
        start = (number - 1) * size
        return Reply(200, [shape(one) for one in every[start : start + size]], headers)


@dataclass(frozen=True)
class Route:
    """A route: the function that responds to an operation, and whether a read-only token may send it."""

    respond: Callable[[Exchange], Reply]
    writes: bool = False
