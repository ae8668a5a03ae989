"""Checks once whether sandboxes can have their own network on this host, by starting a trial sandbox."""

import os
import select
import signal
import tempfile
from pathlib import Path
from typing import Final

from sandherd_network.policy import NetworkPolicy

from sandherd.contracts.specs import SandboxLimits
from spawner.runtimes import cgroups, shim
from spawner.runtimes.contract import RuntimeFailedError, WarmPlan
from spawner.runtimes.isolation import IsolationLaunch
from spawner.runtimes.layout import SandboxDirectory
from spawner.runtimes.network import Networks
from spawner.runtimes.sized_disks import SizedDisks
from spawner.runtimes.worker_start import WorkerStart, WorkerStarter

SHARED_NETWORK_GAP: Final = (
    "sandboxes share the host's network and reach its loopback services, private networks and cloud metadata: "
    "SANDHERD_SANDBOX_NETWORK=internet prevents that"
)
"""The gap in the isolation of sandboxes with the network mode `host`."""
SECONDS: Final = 30.0
"""The timeout of the trial sandbox, which takes less than one second on an idle machine."""


def refusal(launch: IsolationLaunch, networks: Networks, command: list[str]) -> str | None:
    """Run `command` in a trial sandbox with its own network. Returns why it fails, with a remedy; None if it works."""
    with tempfile.TemporaryDirectory(prefix="sandherd-") as folder:
        directory = SandboxDirectory(Path(folder, "sbx-trial"))
        no_disks = SizedDisks(Path(folder), 0)  # nothing would unmount the sandbox's file system
        no_groups = cgroups.ControlGroups(None, None, 1)
        trial = WorkerStarter(
            tuple(command), launch, no_groups, count_processes=False, disks=no_disks, networks=networks
        )
        try:
            reason = _start_trial(trial, directory)
        except (RuntimeFailedError, OSError) as error:
            reason = str(error)
        finally:
            launch.release_uid(directory)
    if reason is None:
        return None
    return (
        f"sandboxes can't have a network of their own on this host: {reason}. Load the kernel modules nf_tables and "
        "nft_tproxy, or set SANDHERD_SANDBOX_NETWORK=host: then they reach all that this host reaches"
    )


def _start_trial(trial: WorkerStarter, directory: SandboxDirectory) -> str | None:
    trial.set_up_warm(directory, WarmPlan(unit=directory.name, limits=SandboxLimits()))
    run = directory.new_run()
    pid = trial.spawn(directory, run, WorkerStart(SandboxLimits(), {}, NetworkPolicy(mode="none")))
    ended = _wait_ended(pid)
    if not ended:
        os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    if not ended:
        # The sandbox waits for its forwarder, which fails repeatedly, and whose log has the reason.
        return _last_line(run.network_log) or f"it did not start within {SECONDS:g} s"
    return None if shim.read_exit(run) == 0 else shim.read_last_line(run) or "a sandbox did not start"


def _wait_ended(pid: int) -> bool:
    """Whether this child process ends within the timeout."""
    descriptor = os.pidfd_open(pid)
    try:
        readable, _, _ = select.select([descriptor], [], [], SECONDS)  # a pidfd is readable once its process has ended
    finally:
        os.close(descriptor)
    return bool(readable)


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return lines[-1][-300:] if lines else ""
