"""Decides who may use the proxy, and the outcome of a push. Pure functions of records."""

from collections import deque
from dataclasses import dataclass
from typing import Final

from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.events.branch import BranchRefused
from sandherd.contracts.names import SANDBOX_PREFIX
from sandherd.contracts.states import SANDBOX_ENDED, TASK_ENDED, BranchState, SandboxState
from spawner.repositories.branch_record import BranchRecord, ReceivedCommits
from spawner.sandboxes.git_proxy_access import repository_url
from spawner.sandboxes.sandbox_record import SandboxRecord
from spawner.tasks.task_record import TaskRecord

_WORKING_STATES: Final = frozenset({SandboxState.SPAWNING, SandboxState.RUNNING}) - SANDBOX_ENDED
_PUSH_QUOTAS: Final = ((20, 600.0), (100, 86_400.0))
"""The maximum number of pushes of one sandbox in each period in seconds. Each push costs the spawner a check of the
commits, storage and a push to the forge."""
_BYTE_QUOTA: Final = (1024 * 1024 * 1024, 600.0)
"""The maximum bytes of a sandbox's pushes in a period in seconds. The broker could store more."""
_FETCH_QUOTA: Final = (600, 600.0)
"""The maximum number of fetch requests of a sandbox in a period in seconds. The forge counts them for the herd's rate
limit."""
_REPORT_SECONDS: Final = 60.0
"""Seconds between two reports of one sandbox and reason."""
_REPORT_LIFETIME: Final = 3600.0
"""Seconds after which the last report of a sandbox and reason is deleted."""
_MAX_REPORTS: Final = 1000
"""Maximum pairs of sandbox and reason that are reported in an hour. A client may send any sandbox's name in a path."""
_REASONS: Final = {401: "credential", 403: "ended", 404: "forge", 429: "limit", 502: "forge", 503: "unavailable"}
"""The reason of a refusal in metrics, by its HTTP status."""
_LONGEST_PERIOD: Final = max(seconds for _, seconds in _PUSH_QUOTAS)


def usable_branch(sandbox: SandboxRecord | None, task: TaskRecord | None) -> str | None:
    """The id of the branch that this sandbox may use through the proxy, or None.

    The sandbox has to work on the current attempt of a task that uses the proxy. A task that has ended has nothing to
    push, even while its sandbox is still running.
    """
    if sandbox is None or sandbox.state not in _WORKING_STATES or task is None or task.sandbox != sandbox.sandbox:
        return None
    if task.state in TASK_ENDED:
        return None
    return task.branch if repository_url(task.whole_spec) is not None else None


def head_of(branch: BranchRecord) -> str:
    """The commit that is advertised as the branch's head. A push contains all commits of the sandbox after it.

    If the spawner signed commits, the head is the base's commit, which the sandbox and the mirror always have. The
    sandbox has only the unsigned commits, and the mirror loses these when it is removed or repacked. Whether a push
    continues the branch is checked later, when its commits are added.
    """
    return branch.base_commit if branch.unsigned else branch.commit


def refusal(branch: BranchRecord) -> str | None:
    """Why nothing can be pushed to this branch now, or None."""
    if branch.state is not BranchState.LIVE or branch.delete_wanted:
        return "the branch was deleted"
    if not branch.push:
        return "the task leaves pushes to its user (push: false)"
    return None


def reason_of(status: int) -> str:
    """The reason of a refusal in metrics, by its HTTP status. For a path that is not served, the caller uses `path`."""
    return _REASONS.get(status, "request")


def refused_event(branch: BranchRecord, sandbox: str, reason: str) -> BranchRefused:
    """The event of a push that was refused before its commits were read."""
    return BranchRefused(
        repository=branch.repository, branch=branch.branch, reason=f"push of {sandbox} by the git proxy: {reason}"
    )


@dataclass(frozen=True)
class PushResult:
    """The outcome of a push. `problem`: why the forge does not have the commits; None if it has them."""

    problem: str | None = None


def result_of(branch: BranchRecord, commits: ReceivedCommits) -> PushResult | None:
    """The outcome of the push with which these commits were received; None if it is not known yet."""
    if commits in branch.received:
        return None
    if commits.commit not in (branch.commit, branch.unsigned):
        return PushResult(branch.problem or "the commits were refused")
    if branch.pushed == branch.commit:
        return PushResult()
    return None if branch.push_wanted else PushResult(f"saved, but {branch.problem or 'not pushed'}")


def late_message(branch: BranchRecord | None, commits: ReceivedCommits) -> str:
    """The message to a client if the result of its push is not known in time."""
    if branch is None:
        return "the branch was deleted"
    state = "saved" if commits not in branch.received else "received"
    return f"{state}, and pushed as soon as possible: {branch.problem or 'it takes long'}"


def superseded_bundle(before: BranchRecord, after: BranchRecord) -> ArtifactRef | None:
    """The bundle that the branch had before a push, if it can be deleted because the new bundle contains it; else None.

    It can't be deleted if the record still refers to it, or if a sandbox has stored it. Without the deletion, each push
    of a sandbox would store the whole branch for seven days.
    """
    old, referenced = before.bundle, {after.bundle, after.origin, *(one.bundle for one in after.objects_in)}
    if old is None or after.bundle is None or old in referenced:
        return None
    owner = old.subject.split(".")[-2]
    return None if owner.startswith(SANDBOX_PREFIX) else old


@dataclass
class CountedPush:
    """A push that is permitted, and the bytes of its body so far."""

    at: float
    """When it was admitted, by a monotonic clock in seconds."""
    size: int = 0


class RefusalReports:
    """Limits how often refusals are logged: once in a minute for each sandbox and reason. `now`: the monotonic time."""

    def __init__(self) -> None:
        self._reports: dict[tuple[str, str], tuple[float, int]] = {}
        """The time of the last report of each sandbox and reason, and the number of refusals since then."""

    def due(self, sandbox: str, reason: str, now: float) -> int | None:
        """The number of refusals since the last report, this one included; None if it is not reported now."""
        at, count = self._reports.get((sandbox, reason), (now - _REPORT_SECONDS, 0))
        if now - at < _REPORT_SECONDS:
            self._reports[sandbox, reason] = at, count + 1
            return None
        self._reports = {
            key: (last, unreported)
            for key, (last, unreported) in self._reports.items()
            if now - last < _REPORT_LIFETIME
        }
        if len(self._reports) >= _MAX_REPORTS:
            return None
        self._reports[sandbox, reason] = now, 0
        return count + 1


class PushQuota:
    """Limits the number and the bytes of each sandbox's pushes. `now`: the monotonic time."""

    def __init__(self) -> None:
        self._pushes: dict[str, deque[CountedPush]] = {}

    def admit(self, sandbox: str, now: float) -> CountedPush | None:
        """Count a push; return None if it is not permitted."""
        for name in [name for name, pushes in self._pushes.items() if pushes[-1].at <= now - _LONGEST_PERIOD]:
            del self._pushes[name]
        pushes = self._pushes.setdefault(sandbox, deque(maxlen=max(count for count, _ in _PUSH_QUOTAS)))
        if any(sum(one.at > now - seconds for one in pushes) >= count for count, seconds in _PUSH_QUOTAS):
            return None
        if self.left(sandbox, now) <= 0:
            return None
        pushes.append(CountedPush(now))
        return pushes[-1]

    def left(self, sandbox: str, now: float) -> int:
        """The bytes that the sandbox may push now."""
        maximum, seconds = _BYTE_QUOTA
        return maximum - sum(one.size for one in self._pushes.get(sandbox, ()) if one.at > now - seconds)


class FetchQuota:
    """Limits the requests of each sandbox to its forge. `now`: the monotonic time."""

    def __init__(self) -> None:
        self._begun: dict[str, deque[float]] = {}

    def admit(self, sandbox: str, now: float) -> bool:
        """Count a request; return False if it is not permitted."""
        count, seconds = _FETCH_QUOTA
        for name in [name for name, begun in self._begun.items() if begun[-1] <= now - seconds]:
            del self._begun[name]
        begun = self._begun.setdefault(sandbox, deque(maxlen=count))
        if len(begun) == count and begun[0] > now - seconds:
            return False
        begun.append(now)
        return True
