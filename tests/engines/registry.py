"""A real image registry for tests: Debian's, on a free port, in memory."""

import http.client
import shutil
import subprocess
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Self

from sandherd.stack.nats import free_port
from tests.engines.packages import unpacked
from tests.patience import PATIENCE

PACKAGE = "docker-registry"
_CONFIGURED = """
version: 0.1
log: {{level: warn, accesslog: {{disabled: true}}}}
storage: {{filesystem: {{rootdirectory: {folder}/data}}}}
http: {{addr: {address}}}
"""


class Registry:
    """A registry that listens on this host only, where engines use it without TLS. It ends with the block."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="registry-"))
        self.host = f"127.0.0.1:{free_port()}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        settings = self._folder / "config.yml"
        settings.write_text(_CONFIGURED.format(folder=self._folder, address=self.host))
        program = unpacked(PACKAGE) / "usr" / "bin" / "docker-registry"
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(program), "serve", str(settings)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            self._until_ready(self._process)
        except BaseException:  # raised again: no process outlives a failed start
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _until_ready(self, process: "subprocess.Popen[bytes]") -> None:
        deadline = time.monotonic() + PATIENCE
        while not self._answers():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no registry starts: {(self._folder / 'log').read_text()[-1000:]}")
            threading.Event().wait(0.02)  # another process sends no notification

    def _answers(self) -> bool:
        try:
            with closing(http.client.HTTPConnection(self.host, timeout=5)) as requested:
                requested.request("GET", "/v2/")
                return requested.getresponse().status == http.HTTPStatus.OK
        except OSError:
            return False

    def _end(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(20)
        shutil.rmtree(self._folder, ignore_errors=True)
