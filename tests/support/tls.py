"""A throw-away certificate authority and a server certificate for 127.0.0.1."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

_DAYS = "2"
# Python 3.13 verifies by the letter of RFC 5280, which asks for the identifiers of both keys.
_EXTENSIONS = """subjectAltName=IP:127.0.0.1,DNS:localhost
subjectKeyIdentifier=hash
authorityKeyIdentifier=keyid
basicConstraints=critical,CA:FALSE
"""


@dataclass(frozen=True, slots=True)
class Certificates:
    """Paths of PEM files."""

    authority: Path
    certificate: Path
    key: Path


def make_certificates(folder: Path) -> Certificates:
    """Makes the files with openssl."""
    authority, authority_key = folder / "ca.pem", folder / "ca.key"
    certificate, key = folder / "server.pem", folder / "server.key"
    request, extensions = folder / "server.csr", folder / "server.ext"
    new_key = ["-newkey", "rsa:2048", "-nodes"]
    _openssl(
        *("req", "-x509", *new_key, "-days", _DAYS, "-subj", "/CN=redis-state test authority"),
        *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
        *("-keyout", str(authority_key), "-out", str(authority)),
    )
    _openssl(
        *("req", *new_key, "-subj", "/CN=127.0.0.1"),
        *("-keyout", str(key), "-out", str(request)),
    )
    extensions.write_text(_EXTENSIONS)
    _openssl(
        *("x509", "-req", "-days", _DAYS, "-in", str(request), "-out", str(certificate)),
        *("-CA", str(authority), "-CAkey", str(authority_key), "-CAcreateserial"),
        *("-extfile", str(extensions)),
    )
    return Certificates(authority, certificate, key)


def _openssl(*arguments: str) -> None:
    subprocess.run(("openssl", *arguments), check=True, capture_output=True)
