"""What runs in a pod before, beside and after its program: shell, for any image. All pure.

A pod's first process is a gate. It waits until it is opened, runs the program, and ends with its status; the kubelet
then starts it again, and it waits once more. So the files of a pod outlive its program, for whoever recovers it: also
when the kernel has ended everything in the pod for its memory.
"""

import shlex
from collections.abc import Sequence
from typing import Final

from spawner.runtimes.boxes.bundle import WORKER
from spawner.runtimes.boxes.furnishing import FOLDERS, ROOT

OWN: Final = f"{ROOT}/.box"
"""The gate's own files: `life` counts its starts, `go` is the life that may run the program, `pid.N` is the program's
in that life."""
BROUGHT: Final = f"{ROOT}/worker"
"""Where the worker is put in a pod whose image lacks it: nothing else there can be written to."""
TOO_LARGE, NO_FILE, NOT_THERE, CUT_SHORT, TOO_LATE = 41, 42, 44, 45, 46
"""How our own scripts end when they can't do what they were to do."""
_PLACE: Final = f"mkdir -p {OWN} && cd {ROOT} && mkdir -p {' '.join(FOLDERS)} || exit 1"
"""Done by whoever is first: a cluster takes commands for a pod whose first process has not done anything yet."""
_NUMBERED: Final = 'echo $$ > "$0.new" && mv "$0.new" "$0"; exec "$@"'
"""Tells its own number, and becomes the program. Told by the gate, it could be signalled before it would hear that."""
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
if [ "$1" = {WORKER}/bin/sandherd-box ] && [ ! -x "$1" ]; then shift; set -- {BROUGHT}/bin/sandherd-box "$@"; fi
child=
told=
trap 'told=1; [ -z "$child" ] || kill -TERM "$child" 2>/dev/null' TERM INT
cd {ROOT}/work
/bin/sh -c {shlex.quote(_NUMBERED)} "{OWN}/pid.$go" "$@" &
child=$!
[ -z "$told" ] || kill -TERM "$child" 2>/dev/null
code=127
while :; do
  told=
  wait "$child"
  new=$?
  [ $new = 127 ] || code=$new
  [ -n "$told" ] || break
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
    """The command of a pod. The limits hold for each process of its own."""
    return ["/bin/sh", "-c", _GATE, "sandherd-gate", str(open_files), str(cpu_seconds), *program]


def state() -> str:
    """Says what life may run, and whether the image has the worker, or it was brought."""
    there = f"[ -x {WORKER}/bin/sandherd-box ] || [ -e {BROUGHT}/.whole ]"
    return f"cat {OWN}/go 2>/dev/null || echo 0; if {there}; then echo yes; else echo no; fi"


def bring(size: int) -> str:
    """Unpacks the worker that follows."""
    done = f"mkdir -p {BROUGHT}; {_UNPACK.format(how='z', folder=BROUGHT)}touch {BROUGHT}/.whole"
    return f"umask 077\n{_PLACE}\n" + _RECEIVE.format(size=size) + "umask 022\n" + done


def receive(size: int) -> str:
    """Unpacks the files that follow."""
    return f"umask 077\n{_PLACE}\n" + _RECEIVE.format(size=size) + _UNPACK.format(how="", folder=ROOT)


def opened(life: int) -> str:
    """Opens the gate for that life of it. It may be open already."""
    new = f"{OWN}/go.$$"
    return (
        f'if [ "$(cat {OWN}/go 2>/dev/null || echo 0)" -lt {life} ]; then '
        f"echo {life} > {new} && mv {new} {OWN}/go || exit 1; fi\n"
    )


def unless_open(life: int) -> str:
    """What follows is not done where the gate was opened for that life."""
    return f'[ "$(cat {OWN}/go 2>/dev/null || echo 0)" -lt {life} ] || exit 0\n'


def signalled(signal: str, life: int) -> str:
    """Sends the program of that life a signal; one that is about to start gets it then."""
    number = f"{OWN}/pid.{life}"
    soon = f"n=0; until [ -e {number} ] || [ $n -ge 30 ]; do n=$((n + 1)); sleep 0.1; done"
    return f'{soon}; kill -{signal} "$(cat {number})" 2>/dev/null || true'


def bounded(argv: Sequence[str], environment: dict[str, str], folder: str, seconds: float) -> str:
    """Runs a command, and ends it after that time."""
    variables = [f"{name}={value}" for name, value in environment.items()]
    words = ["env", *variables, "timeout", "-k", "1", f"{seconds:g}", *argv]
    return f"cd {shlex.quote(folder)} && exec {shlex.join(words)} </dev/null"


def shown(path: str, limit: int) -> str:
    """Writes a file out."""
    quoted = shlex.quote(path)
    return (
        f"[ -e {quoted} ] || exit {NOT_THERE}; [ -f {quoted} ] || exit {NO_FILE}; "
        f'[ "$(wc -c < {quoted})" -le {limit} ] || exit {TOO_LARGE}; exec cat < {quoted}'
    )
