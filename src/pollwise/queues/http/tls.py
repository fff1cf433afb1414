"""The certificates to trust for https://, and clear errors for others."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import httpx

from pollwise.errors import ConfigError

#: Names a file of certificates to trust; many programs use it.
VARIABLE = "SSL_CERT_FILE"
#: OpenSSL's error numbers (x509_vfy.h).
NOT_YET_VALID = 9
EXPIRED = 10
OF_ANOTHER_HOST = (62, 64)  # a name, an address


def context(ca_file: str | Path | None = None) -> ssl.SSLContext:
    """Trusts what httpx trusts (SSL_CERT_FILE, SSL_CERT_DIR or certifi), and `ca_file`.

    A new context each time, because httpx and websockets each store their protocols in it.
    """
    try:
        made: ssl.SSLContext = httpx.create_ssl_context()
    except (OSError, ssl.SSLError) as error:
        raise _unreadable(VARIABLE, os.environ.get(VARIABLE, ""), error) from None
    if ca_file is not None:
        try:
            made.load_verify_locations(cafile=str(ca_file))
        except (OSError, ssl.SSLError) as error:
            raise _unreadable("ca_file", str(ca_file), error) from None
    return made


def check(base: str, ca_file: str | Path | None) -> None:
    """Refuse unreadable certificate files before the first request, with the name of the file.

    base: the address; SSL_CERT_FILE matters only for https://.
    """
    if ca_file is not None or (base.startswith("https:") and os.environ.get(VARIABLE)):
        context(ca_file)


def trusts_nothing() -> ssl.SSLContext:
    """For http://: loading certificates that nobody needs would take 25 ms of CPU."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _unreadable(name: str, file: str, error: OSError) -> ConfigError:
    why = error.strerror if not isinstance(error, ssl.SSLError) else "it holds none"
    return ConfigError(
        f"{name} = {file!r}: no certificate can be read from it ({why}); name a file of "
        "certificates in PEM"
    )


def problem(error: BaseException) -> str | None:
    """Why TLS failed, and what to do about it; None if something else was wrong."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        return None
    if not isinstance(cause, ssl.SSLCertVerificationError):
        if cause.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
            return "does not use TLS; write http://, or the port that uses TLS"
        return f"failed the TLS handshake ({cause.reason or cause}); check its TLS settings"
    said, code = cause.verify_message, cause.verify_code
    if code == EXPIRED:
        return (
            f"has a TLS certificate that is not trusted: it has expired ({said}); renew it, "
            "and check the clock of this machine"
        )
    if code == NOT_YET_VALID:
        return (
            f"has a TLS certificate that is not trusted: it is not valid yet ({said}); check "
            "the clock of this machine"
        )
    if code in OF_ANOTHER_HOST:
        return (
            f"has a TLS certificate that is not trusted: it is for another host ({said}); use a "
            "name that the certificate contains, or get one for this name"
        )
    return (
        f"has a TLS certificate that is not trusted ({said}); if it is your own, name the file of "
        "the certificate that it is signed with (PEM): --ca-file of `pollwise agent`, ca_file= in "
        "a queue URL, or SSL_CERT_FILE"
    )
