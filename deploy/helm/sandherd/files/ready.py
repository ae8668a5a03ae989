"""Asks every replica of every service whether it is ready, and prints which is not."""

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
    """Whether a replica is ready, and the states of its parts."""
    host = f"[{address}]" if ":" in address else address
    try:
        with urllib.request.urlopen(f"http://{host}:{port}/readyz", timeout=5) as answer:
            return True, answer.read().decode()
    except urllib.error.HTTPError as error:
        return False, error.read().decode()
    except OSError as error:
        return False, f"no answer: {error}\n"


def looked(name: str, port: int) -> bool:
    """Whether all replicas of a service are ready; the reply of each is printed."""
    replicas = addresses(name, port)
    answers = {address: said(address, port) for address in replicas}
    for address, (well, text) in answers.items():
        parts = "".join(f"  {line}\n" for line in text.splitlines())
        sys.stdout.write(f"{name} {address}: {'ready' if well else 'NOT READY'}\n{parts}")
    if not replicas:
        sys.stdout.write(f"{name}: no replica\n")
    return bool(replicas) and all(well for well, _ in answers.values())


def main(names: list[str]) -> int:
    """1 if one of them is not ready, or is not there."""
    places = [name.rpartition(":") for name in names]
    found = [looked(host, int(port)) for host, _, port in places]  # all of them, also after one that is not ready
    return 0 if all(found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
