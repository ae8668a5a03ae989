"""Connections by TLS, on a real nats-server that requires client certificates, with authorities of the test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sandherd.bus.auth.tls import CA, CERT, KEY, TlsFiles
from sandherd.bus.connection import Bus, BusError, ConnectionIdentity, TlsError
from sandherd.client.connection import Connection
from sandherd.client.context import Context
from sandherd.client.errors import NotReachedError
from sandherd.stack.child_process import ChildCommand, ChildProcess
from sandherd.stack.nats import find_binary, free_port
from tests.engines.certificates import authority, issue
from tests.patience import PATIENCE
from tests.polling import eventually


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two authorities, a server's certificate and two clients' certificates: `stranger` is of the other authority."""
    folder = tmp_path_factory.mktemp("tls")
    for name in ("ca", "other"):
        authority(folder, name)
    issue(folder, "server")
    issue(folder, "client")
    issue(folder, "stranger", "other")
    return folder


class Server:
    """A nats-server that accepts only clients with a certificate of its authority, or has other TLS settings."""

    def __init__(self, files: Path, folder: Path, tls: str | None = None) -> None:
        self.port = free_port()
        self.url = f"tls://127.0.0.1:{self.port}"
        (folder / "tls.conf").write_text(
            f'listen: "127.0.0.1:{self.port}"\n'
            + (
                f'tls {{ cert_file: "{files}/server.crt", key_file: "{files}/server.key", '
                f'ca_file: "{files}/ca.crt", verify: true, timeout: 10 }}\n'
                if tls is None
                else tls
            )
        )
        command = ChildCommand(arguments=[find_binary(), "-c", str(folder / "tls.conf")], log=folder / "nats.log")
        self.child = ChildProcess(command)


@pytest.fixture
async def server(files: Path, tmp_path: Path) -> AsyncIterator[Server]:
    one = Server(files, tmp_path)
    one.child.start()
    yield one
    await one.child.stop(PATIENCE)


def given(monkeypatch: pytest.MonkeyPatch, **paths: Path) -> None:
    for name in (CA, CERT, KEY):
        monkeypatch.delenv(name, raising=False)
    for name, path in paths.items():
        monkeypatch.setenv(name, str(path))


def opening(server: Server, patience: float = PATIENCE) -> Any:
    return Bus.open(
        server.url, name="one", identity=ConnectionIdentity.anonymous(), inbox="_INBOX_one", connect_timeout=patience
    )


async def test_a_client_with_the_right_files_is_let_in(
    server: Server, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client with the right files is accepted: client and server check each other's certificates."""
    given(monkeypatch, **{CA: files / "ca.crt", CERT: files / "client.crt", KEY: files / "client.key"})
    async with opening(server) as bus:
        assert bus.connected
        await bus.flush(timeout=PATIENCE)


async def test_authorities_of_a_context_are_used(server: Server, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The authorities of a context replace those of the environment, whose client certificate is presented."""
    await well(server, files, monkeypatch)
    given(monkeypatch, **{CA: files / "other.crt", CERT: files / "client.crt", KEY: files / "client.key"})
    known: dict[str, Any] = {"nats_url": server.url, "credentials": None, "project": "default", "home": files}
    async with Connection.open(Context(**known, ca=files / "ca.crt"), patience=PATIENCE) as connection:
        assert connection.connected
    with pytest.raises(NotReachedError, match="certificate verify failed") as caught:
        async with Connection.open(Context(**known, name="prod", ca=files / "other.crt"), patience=0):
            pass
    assert "the context prod" in str(caught.value.problem.remedy)


@pytest.mark.parametrize(("ca", "client"), [("ca", None), ("ca", "stranger"), ("other", "client"), (None, "client")])
async def test_any_other_is_not(
    server: Server, files: Path, monkeypatch: pytest.MonkeyPatch, ca: str | None, client: str | None
) -> None:
    """A client without a certificate, with another authority's, or that does not know the server's is refused."""
    await well(server, files, monkeypatch)
    pair = {CERT: files / f"{client}.crt", KEY: files / f"{client}.key"} if client else {}
    given(monkeypatch, **pair, **({CA: files / f"{ca}.crt"} if ca else {}))
    with pytest.raises(TlsError, match="no TLS connection to tls://") as caught:
        async with opening(server, patience=0):
            pass
    assert ca == "ca" or "certificate verify failed" in str(caught.value)


async def well(server: Server, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait until the server accepts the right client."""
    given(monkeypatch, **{CA: files / "ca.crt", CERT: files / "client.crt", KEY: files / "client.key"})
    async with opening(server):
        pass


async def test_a_renewed_certificate_is_used_at_the_next_connection(
    server: Server, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are read again at each connection, so that a renewed certificate needs no restart."""
    for kind in ("crt", "key"):
        (tmp_path / f"own.{kind}").write_bytes((files / f"client.{kind}").read_bytes())
    given(monkeypatch, **{CA: files / "ca.crt", CERT: tmp_path / "own.crt", KEY: tmp_path / "own.key"})
    async with opening(server) as bus:
        for kind in ("crt", "key"):
            (tmp_path / f"own.{kind}").write_bytes((files / f"stranger.{kind}").read_bytes())
        await server.child.stop(PATIENCE)
        server.child.start()
        await eventually(lambda: refused(tmp_path))
        for kind in ("crt", "key"):
            (tmp_path / f"own.{kind}").write_bytes((files / f"client.{kind}").read_bytes())
        await eventually(lambda: bus.reconnects)


async def test_files_are_read_again_before_each_first_connect(
    server: Server, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that started with old files connects once they are replaced, also by another authority's."""
    old = {"ca.crt": "other.crt", "own.crt": "stranger.crt", "own.key": "stranger.key"}
    new = {"ca.crt": "ca.crt", "own.crt": "client.crt", "own.key": "client.key"}
    await well(server, files, monkeypatch)
    replaced(files, tmp_path, old)
    given(monkeypatch, **{CA: tmp_path / "ca.crt", CERT: tmp_path / "own.crt", KEY: tmp_path / "own.key"})
    manager = opening(server)
    opens = asyncio.create_task(manager.__aenter__())
    await eventually(lambda: refused(tmp_path))
    assert not opens.done()
    replaced(files, tmp_path, new)
    assert (await opens).connected
    await manager.__aexit__(None, None, None)


def replaced(files: Path, folder: Path, names: dict[str, str]) -> None:
    for name, source in names.items():
        (folder / name).write_bytes((files / source).read_bytes())


def refused(folder: Path) -> bool:
    return "TLS handshake error" in (folder / "nats.log").read_text()


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["nothing", "a part"])
async def test_half_open_tls_is_closed(files: Path, tmp_path: Path, sent: bytes) -> None:
    """The broker's own time-out, which no configuration changes, closes a connection without a complete handshake."""
    named = f'tls {{ cert_file: "{files}/server.crt", key_file: "{files}/server.key" }}\n'
    server = Server(files, tmp_path, named)
    server.child.start()
    try:
        await eventually(lambda: _listens(server))
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert (await reader.readline()).startswith(b"INFO ")
        writer.write(sent)
        async with asyncio.timeout(PATIENCE):
            with suppress(ConnectionError):
                await reader.read()
        writer.close()
        assert "TLS handshake" in (tmp_path / "nats.log").read_text()
    finally:
        await server.child.stop(PATIENCE)


async def _listens(server: Server) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    except OSError:
        return False
    writer.close()
    return True


@pytest.fixture
async def plain(files: Path, tmp_path: Path) -> AsyncIterator[Server]:
    """A broker without TLS, such as a man in the middle."""
    one = Server(files, tmp_path, tls="trace: true\n")
    one.child.start()
    yield one
    await one.child.stop(PATIENCE)


@pytest.mark.parametrize("required_by", ["scheme", "one scheme of two", CA])
async def test_nothing_is_sent_in_plain_text_where_tls_is_required(
    plain: Server, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, required_by: str
) -> None:
    """If the scheme of any URL, or a file, requires TLS, a server without it is refused with the reason."""
    given(monkeypatch)
    bare = plain.url.replace("tls://", "nats://")
    plain.url = bare
    async with opening(plain):  # once it listens
        pass
    connects = (tmp_path / "nats.log").read_text().count("<<- [CONNECT")
    given(monkeypatch, **({CA: files / "ca.crt"} if required_by == CA else {}))
    urls = {"scheme": bare.replace("nats://", "tls://"), "one scheme of two": f"{bare},tls://127.0.0.1:1", CA: bare}
    plain.url = urls[required_by]
    with pytest.raises(BusError) as caught:
        async with opening(plain, patience=0):
            pass
    assert connects == 1 == (tmp_path / "nats.log").read_text().count("<<- [CONNECT")
    if required_by != "one scheme of two":  # there the last reason may be that of the other server
        assert isinstance(caught.value, TlsError)
        assert "the server offers no TLS" in str(caught.value)


async def test_tls_that_is_only_offered_is_used(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that requests TLS sends no plain text to a server that also accepts plain text."""
    pair = f'cert_file: "{files}/server.crt", key_file: "{files}/server.key"'
    one = Server(files, tmp_path, tls=f"tls {{ {pair} }}\nallow_non_tls: true\n")
    one.child.start()
    try:
        given(monkeypatch, **{CA: files / "ca.crt"})
        async with opening(one) as bus:
            assert bus.client.is_tls
            await bus.flush(timeout=PATIENCE)
    finally:
        await one.child.stop(PATIENCE)


async def test_command_names_the_reason_and_the_files(
    server: Server, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has the reason of TLS and names the files' variables, rather than stating that there is no broker."""
    await well(server, files, monkeypatch)
    given(monkeypatch, **{CA: files / "other.crt"})
    with pytest.raises(NotReachedError) as caught:
        async with Connection.open(
            Context(nats_url=server.url, credentials=None, project="demo", home=files), patience=0
        ):
            pass
    problem = caught.value.problem
    assert problem.message.startswith(f"no TLS connection to {server.url}: ")
    assert "certificate verify failed" in problem.message
    assert problem.remedy == "check NATS_CA, NATS_CERT and NATS_KEY"


@pytest.mark.parametrize(
    ("values", "expected_text"),
    [
        ({CERT: "client.crt"}, "belong together"),
        ({CA: "none.crt"}, "NATS_CA=none.crt: No such file"),
        ({CA: "names"}, "PEM"),
        ({CERT: "client.crt", KEY: "server.key"}, "NATS_KEY=server.key"),
    ],
)
def test_files_that_can_not_work_are_named(
    files: Path, monkeypatch: pytest.MonkeyPatch, values: dict[str, str], expected_text: str
) -> None:
    """Unusable files are named with their variables, before anything is connected."""
    monkeypatch.chdir(files)
    with pytest.raises(BusError, match=expected_text):
        TlsFiles.of(values).context()


def test_without_files_the_client_is_as_it_was() -> None:
    """Without files a client trusts the system's authorities if a URL requests TLS."""
    assert TlsFiles.of({}).context() is None
