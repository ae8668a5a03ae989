"""Whether the service in this container reports that it is ready: one HTTP request, with as few imports as possible."""

import os
import socket
import sys

TIMEOUT = 4.0


def main() -> int:
    """The exit status: 0 if it is ready."""
    # A connection to 0.0.0.0 reaches the local host on Linux.
    address = os.environ["SANDHERD_HTTP_HOST"], int(os.environ["SANDHERD_HTTP_PORT"])
    with socket.create_connection(address, TIMEOUT) as line:
        line.settimeout(TIMEOUT)
        line.sendall(b"GET /readyz HTTP/1.0\r\nHost: localhost\r\n\r\n")
        answer = b""
        while piece := line.recv(4096):
            answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    sys.stdout.write(body.decode(errors="replace"))  # an engine shows this output for an unhealthy container
    return 0 if head.split(b" ", 2)[1:2] == [b"200"] else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OSError as error:
        sys.exit(f"the service does not answer: {error}")
