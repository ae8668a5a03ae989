"""The shim, a shell between the spawner and a worker. It outlives the spawner, and stores how the worker ended.

It claims the run (of two shims for one run, the second ends without starting anything), enters the control groups,
starts the network forwarder or requests a forked one to begin, sets the limits, runs the worker, and writes the
worker's exit status. After the worker it starts no other program, because every process except the shim is killed when
a sandbox is ended. The status is complete, because it is read only when the shim has ended. After a power failure it
may be missing, and the worker then counts as killed.

An isolated worker writes to a pipe, not to the log file. A process outside of the sandbox's groups and namespaces
copies the first `LOG_BYTES` into the file and discards the rest. Nothing in the sandbox can truncate the file, or fill
the disk through it.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from sandherd.processes import ProcessId, read_stat
from spawner.runtimes.contract import RunEnd
from spawner.runtimes.kernel_limits import ProcessLimits
from spawner.runtimes.run_files import RunFiles

CLAIMED_BY_ANOTHER: Final = 75
"""Exit status of a shim whose run is already claimed (EX_TEMPFAIL of sysexits.h)."""

LOG_BYTES: Final = 1024 * 1024
"""The maximum size of a run's log."""
_BLOCK_BYTES: Final = 512
"""The unit of `ulimit -f`."""
_MAX_LINE: Final = 300
"""Maximum length of a run's last line: in bytes when it is read, and in characters of the result."""
_PIPE_MODE: Final = 0o600
_SIGNALLED: Final = 128
"""A shell's exit status after signal n is 128 + n."""
INFO: Final = 3
"""The descriptor to which bubblewrap writes the ids of the namespaces; the script opens it for `RunFiles.info`."""

_TEMPLATE: Final = """
run=$1 folder=$2 files=$3 cpu=$4 data=$5 groups=$6 log=$7 python=$8 forwarder=$9
shift 9
forked=$1
shift
cd "$folder" || exit 1
read -r boot </proc/sys/kernel/random/boot_id
read -r stat </proc/$$/stat
set -C
echo "$boot $stat" 2>/dev/null >"$run/claim" || exit CLAIMED
set +C
writer=
if [ "$log" = pipe ]; then
  { ulimit -f LOG_BLOCKS; trap '' XFSZ; cat; exec cat >/dev/null; } <"$run/pipe" >>"$run/log" 2>/dev/null 5<&- 6<&- &
  writer=$! log=$run/pipe
  trap : PIPE
fi
for group in $groups; do echo 0 >"$group/cgroup.procs"; done
forward() {
  if [ "$forked" ]; then
    forked=
    trap '' PIPE
    echo begin 2>/dev/null >&6 && read -r code <&6 && return "$code"
    return 1
  fi
  "$python" -I -S "$forwarder" "$run" </dev/null >>"$run/network.log" 2>&1 6<&-
}
if [ -n "$forwarder" ]; then
  (until forward; do
    [ -d "$run" ] && [ ! -e "$run/exit" ] && kill -0 $$ 2>/dev/null || exit 0; sleep 1
  done) 5<&- &
  exec 4<>"$run/gate"
fi
exec 6<&-
ulimit -c 0; ulimit -n "$files"; ulimit -t "$cpu"
if [ "$data" != none ]; then ulimit -d "$data"; fi
"$@" </dev/null >>"$log" 2>&1 3>"$run/info"
echo $? >"$run/exit"
if [ "$writer" ]; then wait "$writer" 2>/dev/null; fi
"""
"""The shim's script. It uses only POSIX features that dash and bash have, and `cat`, and contains nothing of a task."""

_SCRIPT: Final = _TEMPLATE.replace("CLAIMED", str(CLAIMED_BY_ANOTHER)).replace(
    "LOG_BLOCKS", str(LOG_BYTES // _BLOCK_BYTES)
)
_PROCESS_LIMIT_SCRIPT: Final = 'ulimit -p "$0" 2>/dev/null || ulimit -u "$0"; exec "$@"'
"""Sets the limit on the number of processes, with the option `-p` of dash or `-u` of bash, and runs a command."""
CHANNEL: Final = 5
"""The descriptor of the stub's connection to the process that forks the worker."""
FORWARDER_CHANNEL: Final = 6
"""The descriptor of the shim's connection to a forwarder that was forked for it. If that forwarder ends without writing
its status there, or was never forked, the shim starts a forwarder as a program."""
_STUB_SCRIPT: Final = """
worker= stopped= again=
trap 'stopped=1; again=1; [ -z "$worker" ] || kill -TERM "$worker" 2>/dev/null' TERM
echo ready >&5
until read -r word worker <&5; do
  [ "$again" ] || break
  again=
done
if [ "$word" != started ]; then
  trap - TERM
  [ -z "$stopped" ] || exit 143
  exec "$@" 5<&-
fi
[ -z "$stopped" ] || kill -TERM "$worker" 2>/dev/null
while :; do
  again=
  read -r word status <&5 && exit "$status"
  [ "$again" ] || exit 137
done
"""
"""The program that runs in the sandbox in place of a forked worker (see `fork_program`). It runs as long as the worker,
forwards SIGTERM to the worker, also if the signal arrives before the worker's id, and ends with the worker's status. If
the fork fails, it becomes the worker by exec."""


def make_pipe(run: RunFiles) -> None:
    """Create the pipe for the run's output. Only the spawner's user may open it. Raises `OSError`."""
    with suppress(FileExistsError):
        os.mkfifo(run.pipe, _PIPE_MODE)


def argv(  # noqa: PLR0913  # the arguments of the script
    run: RunFiles,
    folder: Path,
    limits: ProcessLimits,
    groups: list[Path],
    command: list[str],
    *,
    log_to_pipe: bool = False,
    forwarder: Path | None = None,
    forwarder_forked: bool = False,
    python: str = sys.executable,
) -> list[str]:
    """The command line of the shim, which runs `command` in `folder`, with a network `forwarder` beside it.

    `log_to_pipe`: the command's output is written to `run.pipe`, not to `run.log`. `forwarder_forked`: a forked
    forwarder waits at the other end of `FORWARDER_CHANNEL`. The command line must not contain a secret: every user of
    the host can read it.
    """
    return [
        "/bin/sh",
        "-c",
        _SCRIPT,
        "sandherd-sandbox",
        str(run.folder),
        str(folder),
        str(limits.open_files),
        str(limits.cpu_seconds),
        "none" if limits.data_kib is None else str(limits.data_kib),
        " ".join(str(group) for group in groups),
        "pipe" if log_to_pipe else str(run.log),
        python,
        str(forwarder or ""),
        "forked" if forwarder_forked else "",
        *command,
    ]


def stub(command: list[str]) -> list[str]:
    """The command line of the stub for a worker with this command line."""
    return ["/bin/sh", "-c", _STUB_SCRIPT, "sandherd-worker", *command]


def with_process_limit(limits: ProcessLimits, command: list[str]) -> list[str]:
    """`command` under a limit on the number of processes, for use inside the sandbox's user namespace."""
    if limits.processes is None:
        return command
    return ["/bin/sh", "-c", _PROCESS_LIMIT_SCRIPT, str(limits.processes), *command]


def read_claim(run: RunFiles) -> ProcessId | None:
    """The process of the shim that claimed the run; None if none did, or if the shim ended while claiming it."""
    try:
        boot, _, stat = run.claim.read_text().partition(" ")
        return ProcessId(boot=boot, **read_stat(stat))
    except (FileNotFoundError, ValueError):
        return None


def read_end(runs: list[RunFiles], *, oom_kills: int) -> RunEnd:
    """How the last run ended. `oom_kills`: how many processes of the sandbox the kernel killed for lack of memory.

    The kernel may have killed only a command of the agent. So the end counts as out of memory only if the worker was
    itself killed by a signal, or if its status is unknown.
    """
    first, last = read_exit(runs[0]), read_exit(runs[-1])
    return RunEnd(
        last,
        out_of_memory=oom_kills > 0 and (first is None or first > _SIGNALLED),
        last_line=read_last_line(runs[-1]),
        recovered_code=first if len(runs) > 1 else None,
    )


def read_last_line(run: RunFiles) -> str:
    """The last line that the worker wrote to its standard error, truncated."""
    try:
        with run.log.open("rb") as log:
            log.seek(max(0, run.log.stat().st_size - _MAX_LINE))
            lines = log.read().replace(b"\0", b"?").decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1][:_MAX_LINE] if lines else ""


def read_exit(run: RunFiles) -> int | None:
    """The worker's exit status that the shim has written; None if there is none."""
    try:
        return int(run.exit.read_text())
    except (FileNotFoundError, ValueError):
        return None
