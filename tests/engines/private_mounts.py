"""A mount namespace that does not have the file systems of other tests' sandboxes.

A namespace begins as a copy of the host's mounts. If these are private, as in a container, an unmount on the host does
not affect the copies, so a sandbox's file system would stay in use as long as such a namespace lives.
"""

from typing import Final

_RELEASE: Final = """
while read -r _ _ _ _ point _; do
  case $point in */sandboxes/*) umount --lazy "$point" 2>/dev/null || true ;; esac
done </proc/self/mountinfo
exec "$@"
"""
PRIVATE_MOUNTS: Final = ("unshare", "--mount", "--propagation=private", "sh", "-c", _RELEASE, "sh")
"""The command line before a program that is to run with its own mounts, as root."""
