"""A program: the spawner as its operator starts it, for tests in which it is a fork (`tests/preloaded_cli`).

An argument is the soft limit of open files with which it begins, as a system may set it.
"""

import resource
import sys

from spawner.main import main

if __name__ == "__main__":
    if limit := sys.argv[1:]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(limit[0]), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        sys.argv[1:] = []
    main()
