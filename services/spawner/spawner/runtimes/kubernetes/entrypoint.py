"""Shell scripts that run in a pod before, during and after its program, in any image. Pure.

A pod's first process is a gate. It waits until it is opened, runs the program, and exits with its status; the kubelet
then restarts it, and it waits again. So the files of a pod outlive its program and can be recovered, even after the
kernel has killed every process of the pod because it was out of memory.
"""

import shlex
from collections.abc import Sequence
from typing import Final

from spawner.runtimes.boxes.box_files import FOLDERS, ROOT
from spawner.runtimes.boxes.worker_bundle import WORKER

OWN: Final = f"{ROOT}/.box"
"""The gate's own files: `life` counts its starts, `go` is the life that may run the program, `pid.N` is the program's
pid in life N."""
UPLOADED_WORKER: Final = f"{ROOT}/worker"
"""The worker's directory in a pod whose image lacks it; only `ROOT` is writable there."""
TOO_LARGE, NO_FILE, NOT_FOUND, CUT_SHORT, TOO_LATE = 41, 42, 44, 45, 46
"""Exit statuses of our own scripts on failure."""
_PLACE: Final = f"mkdir -p {OWN} && cd {ROOT} && mkdir -p {' '.join(FOLDERS)} || exit 1"
"""Run by the gate and by scripts that write files: a cluster accepts commands for a pod before its gate has run."""
_NUMBERED: Final = 'echo $$ > "$0.new" && mv "$0.new" "$0"; exec "$@"'
"""Writes its own pid and executes the program. If the gate wrote it, a signal could arrive before it is handled."""
_GATE: Final = f"""
trap 'exit 143' TERM INT
umask 077
{_PLACE}
ulimit -Sn "$1" 2>/dev/null || true
ulimit -t "$2" 2>/dev/null || true
shift 2
life=$(($(cat {OWN}/life 2>/dev/null || echo 0) + 1))
rm -f {OWN}/pid.*
echo $life > {OWN}/life.new && mv {OWN}/life.new {OWN}/life || exit 1
waited=0
until go=$(cat {OWN}/go 2>/dev/null || echo 0); [ "$go" -ge $life ]; do
  if [ $waited -lt 300 ]; then waited=$((waited + 1)); sleep 0.1 & else sleep 1 & fi
  wait $!
done
if [ "$1" = {WORKER}/bin/sandherd-box ] && [ ! -x "$1" ]; then shift; set -- {UPLOADED_WORKER}/bin/sandherd-box "$@"; fi
child=
stopping=
trap 'stopping=1; [ -z "$child" ] || kill -TERM "$child" 2>/dev/null' TERM INT
cd {ROOT}/work
/bin/sh -c {shlex.quote(_NUMBERED)} "{OWN}/pid.$go" "$@" &
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
part={OWN}/in.$$
head -c {{size}} > "$part"
if ! [ "$(wc -c < "$part")" -eq {{size}} ]; then rm -f "$part"; exit {CUT_SHORT}; fi
"""
_UNPACK: Final = 'tar -x{how}pof "$part" -C {folder}; code=$?; rm -f "$part"; [ $code = 0 ] || exit $code\n'


def gate(program: Sequence[str], open_files: int, cpu_seconds: int) -> list[str]:
    """The command of a pod. The limits apply to each of its processes."""
    return ["/bin/sh", "-c", _GATE, "sandherd-gate", str(open_files), str(cpu_seconds), *program]


def state() -> str:
    """Prints the life that may run the program, and `yes` or `no`: whether the worker is in the image or uploaded."""
    has_worker = f"[ -x {WORKER}/bin/sandherd-box ] || [ -e {UPLOADED_WORKER}/.whole ]"
    return f"cat {OWN}/go 2>/dev/null || echo 0; if {has_worker}; then echo yes; else echo no; fi"


def unpack_worker(size: int) -> str:
    """Unpacks the worker's archive, of `size` bytes, from standard input."""
    done = (
        f"mkdir -p {UPLOADED_WORKER}; {_UNPACK.format(how='z', folder=UPLOADED_WORKER)}touch {UPLOADED_WORKER}/.whole"
    )
    return f"umask 077\n{_PLACE}\n" + _RECEIVE.format(size=size) + "umask 022\n" + done


def receive(size: int) -> str:
    """Unpacks an archive of files, of `size` bytes, from standard input."""
    return f"umask 077\n{_PLACE}\n" + _RECEIVE.format(size=size) + _UNPACK.format(how="", folder=ROOT)


def opened(life: int) -> str:
    """Opens the gate for that life. It may be open already."""
    new = f"{OWN}/go.$$"
    return (
        f'if [ "$(cat {OWN}/go 2>/dev/null || echo 0)" -lt {life} ]; then '
        f"echo {life} > {new} && mv {new} {OWN}/go || exit 1; fi\n"
    )


def unless_open(life: int) -> str:
    """Skips the rest of the script if the gate was already opened for that life."""
    return f'[ "$(cat {OWN}/go 2>/dev/null || echo 0)" -lt {life} ] || exit 0\n'


def signalled(signal: str, life: int) -> str:
    """Sends a signal to the program of that life; waits up to 3 s if it is about to start."""
    number = f"{OWN}/pid.{life}"
    soon = f"n=0; until [ -e {number} ] || [ $n -ge 30 ]; do n=$((n + 1)); sleep 0.1; done"
    return f'{soon}; kill -{signal} "$(cat {number})" 2>/dev/null || true'


def bounded(argv: Sequence[str], environment: dict[str, str], folder: str, seconds: float) -> str:
    """Runs a command with a timeout."""
    variables = [f"{name}={value}" for name, value in environment.items()]
    arguments = ["env", *variables, "timeout", "-k", "1", f"{seconds:g}", *argv]
    return f"cd {shlex.quote(folder)} && exec {shlex.join(arguments)} </dev/null"


def shown(path: str, limit: int) -> str:
    """Prints a file of at most `limit` bytes."""
    quoted = shlex.quote(path)
    return (
        f"[ -e {quoted} ] || exit {NOT_FOUND}; [ -f {quoted} ] || exit {NO_FILE}; "
        f'[ "$(wc -c < {quoted})" -le {limit} ] || exit {TOO_LARGE}; exec cat < {quoted}'
    )
