"""The ACP driver with short time limits for what `HASTY` names, so that a test need not wait long."""

import os

from sandherd_drivers.acp import conversation, turns
from sandherd_drivers.acp.__main__ import main
from sandherd_drivers.wire import run

PATIENCE = {"_START_SECONDS": vars(conversation), "_CANCEL_INTERVAL": vars(turns)}

if __name__ == "__main__":
    name = os.environ["HASTY"]
    assert name in PATIENCE[name]
    PATIENCE[name][name] = 0.05
    run(main)
