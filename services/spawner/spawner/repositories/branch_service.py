"""The part of the spawner that works on repositories. It prepares checkouts, adds and pushes commits, and cleans up."""

from collections.abc import Coroutine, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Self

from sandherd.bus.connection import Bus
from sandherd.bus.lease import Lease
from sandherd.contracts.errors import Code, ContractError
from sandherd.settings import Settings
from spawner.live_state import LiveState
from spawner.repositories.branch_artifacts import BranchArtifacts
from spawner.repositories.branch_names import rules_of
from spawner.repositories.branch_workflow import BranchWorkflow
from spawner.repositories.checkout_preparer import CheckoutPreparer
from spawner.repositories.commit_signer import CommitSigner
from spawner.repositories.mirror_limits import MirrorLimits
from spawner.repositories.mirror_paths import mirrors_folder
from spawner.repositories.mirrors import Mirrors
from spawner.repositories.repository_cleanup import RepositoryCleanup
from spawner.repositories.repository_hosts import RepositoryHosts
from spawner.runtimes.contract import Runtime
from spawner.sandboxes.sandbox_record import SandboxRecord
from spawner.tasks.scheduler import NewSandboxRecord
from spawner.tasks.task_record import TaskRecord

_MIB: Final = 1024 * 1024


class BranchService:
    """Prepares checkouts, runs the steps of branches, and removes repositories that are no longer needed.

    It runs on the replica that holds the scheduler's lease. The mirrors are in the folder `repositories` of
    `SANDHERD_HOME`.
    """

    def __init__(
        self,
        live: LiveState,
        mirrors: Mirrors,
        preparer: CheckoutPreparer,
        workflow: BranchWorkflow,
        cleanup: RepositoryCleanup,
    ) -> None:
        self._live = live
        self.mirrors = mirrors
        self._preparer = preparer
        self._workflow = workflow
        self._cleanup = cleanup

    @classmethod
    def of(
        cls, bus: Bus, live: LiveState, lease: Lease, settings: Settings, runtimes: Mapping[str, Runtime],
        *, hosts: RepositoryHosts,
    ) -> Self:  # fmt: skip
        """The service with these settings, for the sandboxes of these runtimes."""
        artifacts = BranchArtifacts(bus)
        mounting_runtimes = {name for name, runtime in runtimes.items() if runtime.capabilities.mounts_repository}
        mirrors = Mirrors(
            mirrors_folder(settings.home),
            hosts,
            artifacts,
            settings.max_repository_mb,
            mirror_limits(settings),
            max_lfs_mb=settings.max_lfs_mb,
            blobless=settings.mirror_filter == "blob:none",
            shared=settings.share_mirrors,
        )
        return cls(
            live,
            mirrors,
            CheckoutPreparer(
                live, lease, mirrors, artifacts, mounting_runtimes, rules=rules_of(settings.branch_prefixes)
            ),
            BranchWorkflow(live, lease, mirrors, artifacts, settings.repository_approval, signer=signer_of(settings)),
            RepositoryCleanup(live, lease, mirrors, settings.keep_ended),
        )

    def with_checkout(self, new_record: NewSandboxRecord) -> NewSandboxRecord:
        """A function that calls `new_record` for a task whose checkout is prepared.

        For any other task it requests the preparation and returns None.
        """

        async def new_record_if_prepared(task: TaskRecord, sandbox: str, now: datetime) -> SandboxRecord | None:
            return await new_record(task, sandbox, now) if self._preparer.is_prepared(task, now) else None

        return new_record_if_prepared

    def work(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """The coroutines of the service, to be run concurrently. Each runs until it is cancelled."""
        last_events = self._live.last_events.run(self._live.now)
        return self._preparer.run(), self._workflow.run(), self._cleanup.run(), last_events


def signer_of(settings: Settings) -> CommitSigner | None:
    """The signer of sandboxes' commits; None if no committer is configured.

    Raises `ContractError` if a committer is configured and the key is not.
    """
    key, committer = settings.signing_key, settings.signing_committer
    if committer is None:
        return None
    if key is None:
        raise ContractError(
            Code.INVALID_FIELD,
            "commits can't be signed: SANDHERD_SIGNING_KEY is not set",
            field="signing_key",
            remedy="set the path of the private key, or unset SANDHERD_SIGNING_COMMITTER",
        )
    return CommitSigner(key, committer)


def mirror_limits(settings: Settings) -> MirrorLimits:
    """The limits of one project's mirrors."""
    age = timedelta(seconds=settings.keep_mirrors)
    return MirrorLimits(age, settings.max_mirrors, settings.max_mirrors_mb * _MIB)
