"""A program: the spawner as its operator starts it, for tests in which it is a fork (`tests/preloaded_cli`)."""

from spawner.main import main

if __name__ == "__main__":
    main()
