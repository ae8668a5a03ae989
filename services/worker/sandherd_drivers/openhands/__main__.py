"""`python -m sandherd_drivers.openhands`."""

from sandherd_drivers.openhands.task_work import main
from sandherd_drivers.wire import run

if __name__ == "__main__":
    run(main)
