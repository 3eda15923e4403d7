"""TLS for all ports: the broker's certificate (configured or generated), the accepted kinds of
clients, and trusted client certificates."""

from __future__ import annotations

import datetime as dt
import enum
import logging
import os
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tieredstore.broker.settings import BrokerSettings
from tieredstore.disk.user_folders import make_temporary_folder
from tieredstore.errors import Invalid

_VALID_DAYS = 3650
_log = logging.getLogger(__name__)


class TlsMode(enum.Enum):
    """Accepted kinds of clients (Java's `tls.server.mode`)."""

    DISABLED = "disabled"
    """Only clients without TLS."""
    PERMISSIVE = "permissive"
    """Clients with and without TLS."""
    ENFORCING = "enforcing"
    """Only clients with TLS."""


class ClientAuth(enum.Enum):
    """Whether clients must send certificates (Java's `tls.server.need.client.auth`)."""

    NONE = "none"
    """Not requested."""
    OPTIONAL = "optional"
    """Requested. A client with a bad certificate is rejected."""
    REQUIRE = "require"
    """Required. A client without a certificate is rejected too."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """Private key with its certificate chain, both PEM."""

    private_key: bytes
    chain: bytes

    def __repr__(self) -> str:
        return "Certificate(…)"


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS settings of a port. `trusted`: certificates (PEM), one of which must have signed a
    client's certificate. None to request no client certificates."""

    certificate: Certificate
    mode: TlsMode = TlsMode.PERMISSIVE
    client_auth: ClientAuth = ClientAuth.NONE
    trusted: bytes | None = None


def load_tls(settings: BrokerSettings) -> Tls:
    """Load the configured certificate, or generate one. Raises Invalid, for example if client
    certificates are required but none are trusted."""
    certificate = find_certificate(settings.tls_key_path, settings.tls_cert_path)
    mode = TlsMode(settings.tls_server_mode)
    client_auth = ClientAuth(settings.tls_client_auth.lower())
    path = settings.tls_trust_cert_path
    if not settings.tls_auth_client or not path:
        if client_auth is ClientAuth.REQUIRE:
            raise Invalid(
                "tls.server.need.client.auth=require: expected tls.server.authClient=true and "
                "tls.server.trustCertPath, or any certificate would do"
            )
        return Tls(certificate, mode)
    if client_auth is ClientAuth.NONE:
        _log.warning(
            "tls.server.authClient has no effect: tls.server.need.client.auth is none, so clients "
            "are not asked for certificates"
        )
        return Tls(certificate, mode)
    if mode is not TlsMode.ENFORCING:
        _log.warning(
            "tls.server.need.client.auth=%s: clients without TLS show no certificate, and are "
            "served unless tls.server.mode=enforcing",
            client_auth.value,
        )
    try:
        trusted = Path(path).read_bytes()
    except OSError as error:
        raise Invalid(f"tls.server.trustCertPath {path}: {error}") from error
    tls = Tls(certificate, mode, client_auth, trusted)
    make_server_context(tls)  # report an invalid certificate now
    return tls


def make_server_context(tls: Tls) -> ssl.SSLContext:
    """Return a TLS context for the server side. Raises Invalid for an invalid key or
    certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate = tls.certificate
    with ExitStack() as files:  # only files are taken
        key_path = files.enter_context(_make_file(certificate.private_key))
        chain_path = files.enter_context(_make_file(certificate.chain))
        try:
            context.load_cert_chain(chain_path, key_path)
            if tls.trusted is not None:
                context.load_verify_locations(cadata=tls.trusted.decode())
        except (ssl.SSLError, ValueError) as error:
            raise Invalid(f"TLS: expected a key and certificates in PEM: {error}") from error
    if tls.trusted is not None:
        is_required = tls.client_auth is ClientAuth.REQUIRE
        context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
    return context


@contextmanager
def _make_file(data: bytes) -> Iterator[Path]:
    """Create a file that only its owner can read. It is in memory if the system supports that, so
    that no writable folder is needed and no key reaches a disk."""
    if not hasattr(os, "memfd_create"):
        with make_temporary_folder("tieredstore-") as folder:
            path = folder / "file.pem"
            path.touch(0o600)
            path.write_bytes(data)
            yield path
        return
    with open(os.memfd_create("tieredstore"), "wb") as file:
        file.write(data)
        file.flush()
        yield Path(f"/proc/self/fd/{file.fileno()}")


def read_certificate(key_path: Path, chain_path: Path) -> Certificate:
    """Read a key and its chain from files. Raises Invalid."""
    try:
        return Certificate(key_path.read_bytes(), chain_path.read_bytes())
    except OSError as error:
        raise Invalid(f"TLS key {key_path}, certificate {chain_path}: {error}") from error


def find_certificate(key_path: str, chain_path: str) -> Certificate:
    """Return the configured certificate, or a generated one if none is configured. Raises
    Invalid."""
    if not key_path and not chain_path:
        return make_certificate()
    if not key_path or not chain_path:
        raise Invalid("tlsKeyPath, tlsCertPath: expected both or neither, found one")
    return read_certificate(Path(key_path), Path(chain_path))


def make_certificate(host_name: str = "localhost") -> Certificate:
    """Return a self-signed certificate, like RocketMQ's proxy if none is configured. Connections
    are encrypted, but the server's identity is not proven."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host_name)])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=_VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host_name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Certificate(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
        certificate.public_bytes(serialization.Encoding.PEM),
    )
