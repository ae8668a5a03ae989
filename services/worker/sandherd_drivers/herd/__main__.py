"""Started by an agent's SDK: `python -m sandherd_drivers.herd`."""

import os
import sys

from sandherd_drivers.herd.calling import call
from sandherd_drivers.herd.serving import Server

Server(sys.stdin.buffer, sys.stdout.buffer, call).run()
# Calls that still wait for their answers are threads that nobody waits for any more.
os._exit(0)
