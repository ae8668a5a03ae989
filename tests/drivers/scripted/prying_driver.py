"""A driver whose agent examines what it has inherited."""

import subprocess

from sandherd_drivers.wire import Wire, run

LOOK = (
    'printf "mark=%s path=%s input=%s open=" "$SANDHERD_EVENTS_FD" "${PYTHONPATH-no}" "$(cat)"; '
    "cd /proc/self/fd; for f in 0 1 2 3 4 5 6 7 8 9 10 11 12; do [ -e $f ] && printf '%s ' $f; done; true"
)


async def main(wire: Wire) -> None:
    looked = subprocess.run(  # noqa: ASYNC221  # there is nothing else to do
        ["/bin/sh", "-c", LOOK], capture_output=True, check=True, text=True, close_fds=False, stdin=None
    )
    wire.publish_event("agent.message", content=looked.stdout.strip())


if __name__ == "__main__":
    run(main)
