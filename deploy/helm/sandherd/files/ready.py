"""Asks every replica of every service whether it is ready, and says what is not."""

import socket
import sys
import urllib.error
import urllib.request


def addresses(name: str, port: int) -> list[str]:
    """Of all replicas; none where there is no such name, or nothing behind it."""
    try:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except socket.gaierror:
        return []
    return sorted({str(one[4][0]) for one in found})


def said(address: str, port: int) -> tuple[bool, str]:
    """Whether a replica is ready, and what it says of its parts."""
    host = f"[{address}]" if ":" in address else address
    try:
        with urllib.request.urlopen(f"http://{host}:{port}/readyz", timeout=5) as answer:
            return True, answer.read().decode()
    except urllib.error.HTTPError as error:
        return False, error.read().decode()
    except OSError as error:
        return False, f"no answer: {error}\n"


def main(names: list[str]) -> int:
    """1 if one of them is not ready, or is not there."""
    ready = True
    for name in names:
        host, _, port = name.rpartition(":")
        replicas = addresses(host, int(port))
        if not replicas:
            ready = False
            print(f"{host}: no replica")
        for address in replicas:
            well, text = said(address, int(port))
            ready = ready and well
            print(f"{host} {address}: {'ready' if well else 'NOT READY'}")
            print("".join(f"  {line}\n" for line in text.splitlines()), end="")
    return 0 if ready else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
