"""Certificates of the tests' own authorities, made by openssl."""

import subprocess
from pathlib import Path

from tests.patience import PATIENCE

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout")


def authority(folder: Path, name: str) -> None:
    """The key and the certificate of an authority."""
    openssl(
        "req", "-x509", *_KEY, f"{name}.key", "-subj", f"/CN={name}", "-days", "2", "-out", f"{name}.crt", folder=folder
    )


def issue(folder: Path, name: str, ca: str = "ca") -> None:
    """A key and a certificate of that authority, for this host."""
    openssl("req", *_KEY, f"{name}.key", "-subj", f"/CN={name}", "-out", f"{name}.csr", folder=folder)
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    by = ["-CA", f"{ca}.crt", "-CAkey", f"{ca}.key", "-CAcreateserial", "-days", "2", "-extfile", "names"]
    openssl("x509", "-req", "-in", f"{name}.csr", *by, "-out", f"{name}.crt", folder=folder)


def openssl(*words: str, folder: Path) -> None:
    """Run openssl in a folder."""
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=PATIENCE)
