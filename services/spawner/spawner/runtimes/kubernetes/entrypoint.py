"""Shell scripts that run in a pod before, during and after its program, in any image. Pure.

A pod's first process is the gate. It waits until it is opened, runs the program, and exits with the program's status.
The kubelet then restarts the gate, which waits again. So the files of a pod outlive its program and can be recovered,
even after the kernel has killed every process of the pod because it was out of memory. The lives of a gate are its
starts, numbered from 1.

The functions return scripts, and their docstrings describe what the scripts do.
"""

import shlex
from collections.abc import Sequence
from typing import Final

from spawner.runtimes.boxes.box_files import FOLDERS, ROOT
from spawner.runtimes.boxes.worker_bundle import WORKER

GATE_FOLDER: Final = f"{ROOT}/.box"
"""The directory of the gate's files: `life` has the number of its current life, `go` that of the life that may run the
program, and `pid.N` the program's pid in life N."""
UPLOADED_WORKER: Final = f"{ROOT}/worker"
"""The worker's directory in a pod whose image lacks it; only `ROOT` is writable there."""
TOO_LARGE, NO_FILE, NOT_FOUND, CUT_SHORT, TOO_LATE = 41, 42, 44, 45, 46
"""The exit statuses with which our own scripts fail."""
_MAKE_FOLDERS: Final = f"mkdir -p {GATE_FOLDER} && cd {ROOT} && mkdir -p {' '.join(FOLDERS)} || exit 1"
"""Both the gate and scripts that write files run this, because a cluster accepts commands for a pod before its gate has
run."""
_RECORD_PID: Final = 'echo $$ > "$0.new" && mv "$0.new" "$0"; exec "$@"'
"""Writes its own pid and executes the program. If the gate wrote the pid, a signal could be sent to the program's
process before that process handles it."""
_GATE: Final = f"""
trap 'exit 143' TERM INT
umask 077
{_MAKE_FOLDERS}
ulimit -Sn "$1" 2>/dev/null || true
ulimit -t "$2" 2>/dev/null || true
shift 2
life=$(($(cat {GATE_FOLDER}/life 2>/dev/null || echo 0) + 1))
rm -f {GATE_FOLDER}/pid.*
echo $life > {GATE_FOLDER}/life.new && mv {GATE_FOLDER}/life.new {GATE_FOLDER}/life || exit 1
waited=0
until go=$(cat {GATE_FOLDER}/go 2>/dev/null || echo 0); [ "$go" -ge $life ]; do
  if [ $waited -lt 300 ]; then waited=$((waited + 1)); sleep 0.1 & else sleep 1 & fi
  wait $!
done
if [ "$1" = {WORKER}/bin/sandherd-box ] && [ ! -x "$1" ]; then shift; set -- {UPLOADED_WORKER}/bin/sandherd-box "$@"; fi
child=
stopping=
trap 'stopping=1; [ -z "$child" ] || kill -TERM "$child" 2>/dev/null' TERM INT
cd {ROOT}/work
/bin/sh -c {shlex.quote(_RECORD_PID)} "{GATE_FOLDER}/pid.$go" "$@" &
child=$!
[ -z "$stopping" ] || kill -TERM "$child" 2>/dev/null
code=127
while :; do
  stopping=
  wait "$child"
  new=$?
  [ $new = 127 ] || code=$new
  [ -n "$stopping" ] || break
done
exit $code
"""
_RECEIVE: Final = f"""
part={GATE_FOLDER}/in.$$
head -c {{size}} > "$part"
if ! [ "$(wc -c < "$part")" -eq {{size}} ]; then rm -f "$part"; exit {CUT_SHORT}; fi
"""
_UNPACK: Final = 'tar -x{how}pof "$part" -C {folder}; code=$?; rm -f "$part"; [ $code = 0 ] || exit $code\n'


def gate(program: Sequence[str], open_files: int, cpu_seconds: int) -> list[str]:
    """The command of a pod. The limits apply to each of its processes."""
    return ["/bin/sh", "-c", _GATE, "sandherd-gate", str(open_files), str(cpu_seconds), *program]


def print_state() -> str:
    """Prints the life that may run the program, and `yes` or `no`: whether the worker is in the image or uploaded."""
    has_worker = f"[ -x {WORKER}/bin/sandherd-box ] || [ -e {UPLOADED_WORKER}/.whole ]"
    return f"cat {GATE_FOLDER}/go 2>/dev/null || echo 0; if {has_worker}; then echo yes; else echo no; fi"


def unpack_worker(size: int) -> str:
    """Unpacks the worker's archive, of `size` bytes, from standard input."""
    done = (
        f"mkdir -p {UPLOADED_WORKER}; {_UNPACK.format(how='z', folder=UPLOADED_WORKER)}touch {UPLOADED_WORKER}/.whole"
    )
    return f"umask 077\n{_MAKE_FOLDERS}\n" + _RECEIVE.format(size=size) + "umask 022\n" + done


def receive(size: int) -> str:
    """Unpacks an archive of files, of `size` bytes, from standard input."""
    return f"umask 077\n{_MAKE_FOLDERS}\n" + _RECEIVE.format(size=size) + _UNPACK.format(how="", folder=ROOT)


def open_gate(life: int) -> str:
    """Opens the gate for this life. It may be open already."""
    new = f"{GATE_FOLDER}/go.$$"
    return (
        f'if [ "$(cat {GATE_FOLDER}/go 2>/dev/null || echo 0)" -lt {life} ]; then '
        f"echo {life} > {new} && mv {new} {GATE_FOLDER}/go || exit 1; fi\n"
    )


def exit_if_open(life: int) -> str:
    """Skips the rest of the script if the gate was already opened for this life."""
    return f'[ "$(cat {GATE_FOLDER}/go 2>/dev/null || echo 0)" -lt {life} ] || exit 0\n'


def send_signal(signal: str, life: int) -> str:
    """Sends a signal to the program of this life. Waits up to 3 s for the program to start."""
    pid_file = f"{GATE_FOLDER}/pid.{life}"
    wait = f"n=0; until [ -e {pid_file} ] || [ $n -ge 30 ]; do n=$((n + 1)); sleep 0.1; done"
    return f'{wait}; kill -{signal} "$(cat {pid_file})" 2>/dev/null || true'


def run_with_timeout(argv: Sequence[str], environment: dict[str, str], folder: str, seconds: float) -> str:
    """Runs a command with a timeout."""
    variables = [f"{name}={value}" for name, value in environment.items()]
    arguments = ["env", *variables, "timeout", "-k", "1", f"{seconds:g}", *argv]
    return f"cd {shlex.quote(folder)} && exec {shlex.join(arguments)} </dev/null"


def print_file(path: str, limit: int) -> str:
    """Prints a file of at most `limit` bytes."""
    quoted = shlex.quote(path)
    return (
        f"[ -e {quoted} ] || exit {NOT_FOUND}; [ -f {quoted} ] || exit {NO_FILE}; "
        f'[ "$(wc -c < {quoted})" -le {limit} ] || exit {TOO_LARGE}; exec cat < {quoted}'
    )
