"""Started by an agent's SDK: `python -m sandherd_drivers.herd`."""

import os
import sys

from sandherd_drivers.herd.mcp_server import McpStdioServer
from sandherd_drivers.herd.worker_calls import call

McpStdioServer(sys.stdin.buffer, sys.stdout.buffer, call).run()
# Exit without waiting for the threads of calls that have no reply yet.
os._exit(0)
