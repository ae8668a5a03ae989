"""A small server in place of a real one, for what is about time: `python standing_server.py PORT HOW FOLDER`.

`well` answers; `deaf` never does; `tired` answers three times and then holds every question; `brief` ends after its
first answer. It leaves a process behind in a session of its own, as a terminal's server does.
"""

import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PORT, HOW, FOLDER = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])


class Handler(BaseHTTPRequestHandler):
    requested = 0

    def do_GET(self) -> None:
        Handler.requested += 1
        if HOW == "tired" and Handler.requested > 3:
            threading.Event().wait()
        self.send_response(200)
        self.end_headers()
        if HOW == "brief":
            self.wfile.flush()
            sys.stderr.write("that was enough\n")
            sys.stderr.flush()
            os._exit(3)

    def log_message(self, *_: object) -> None:
        """It is not read."""


left = subprocess.Popen(["sleep", "4733"], start_new_session=True)
(FOLDER / "starts").open("a").write(f"{left.pid}\n")
if HOW == "deaf":
    threading.Event().wait()
ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
