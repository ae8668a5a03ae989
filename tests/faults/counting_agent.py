"""An agent that publishes a number of numbered messages, a few at a time, and reads nothing.

Usage: python3 counting_agent.py COUNT PAUSE [HOLD ...], where PAUSE is in seconds after every twenty messages. After
each HOLD messages it waits for the file `go-HOLD`.
"""

import json
import os
import sys
import time

count, pause, holds = int(sys.argv[1]), float(sys.argv[2]), {int(word) for word in sys.argv[3:]}
channel = int(os.environ["SANDHERD_EVENTS_FD"])
for number in range(1, count + 1):
    line = {"type": "agent.message", "data": {"content": str(number), "content_length": len(str(number))}}
    os.write(channel, json.dumps(line).encode() + b"\n")
    if number % 20 == 0:
        time.sleep(pause)  # noqa: TID251  # spreads the messages over the time of the faults
    while number in holds and not os.path.exists(f"go-{number}"):  # noqa: PTH110  # it needs no more than these modules
        time.sleep(0.02)  # noqa: TID251  # nothing announces another process's file
print(f"published {count} messages")
