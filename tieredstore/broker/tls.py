"""TLS of all ports: the broker's certificate, configured or made for this run, which clients are
served, and whose certificates count."""

from __future__ import annotations

import datetime as dt
import enum
import logging
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tieredstore.errors import Invalid

if TYPE_CHECKING:
    from tieredstore.broker.settings import BrokerSettings

_VALID_DAYS = 3650
_log = logging.getLogger(__name__)


class TlsMode(enum.Enum):
    """Which clients are served, Java's `tls.server.mode`."""

    DISABLED = "disabled"
    """Without TLS only."""
    PERMISSIVE = "permissive"
    """Both."""
    ENFORCING = "enforcing"
    """With TLS only."""


class ClientAuth(enum.Enum):
    """Whether clients with TLS show a certificate, Java's `tls.server.need.client.auth`."""

    NONE = "none"
    """They are not asked."""
    OPTIONAL = "optional"
    """They are asked; one that shows a bad certificate is not served."""
    REQUIRE = "require"
    """They are asked; one that shows none is not served either."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A private key and its certificate chain, both PEM."""

    private_key: bytes
    chain: bytes

    def __repr__(self) -> str:
        return "Certificate(…)"


@dataclass(frozen=True, slots=True)
class Tls:
    """How a port speaks TLS. trusted: certificates (PEM), one of which has to have signed that of a
    client; None where clients are not asked for theirs."""

    certificate: Certificate
    mode: TlsMode = TlsMode.PERMISSIVE
    client_auth: ClientAuth = ClientAuth.NONE
    trusted: bytes | None = None


def load_tls(settings: BrokerSettings) -> Tls:
    """Read or make what the settings ask for. Raises Invalid, also for a request of certificates
    that any certificate would meet."""
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
    make_server_context(tls)  # what is no certificate is told of now
    return tls


def make_server_context(tls: Tls) -> ssl.SSLContext:
    """Make the server's side of TLS. Raises Invalid for what is no key or certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate = tls.certificate
    with tempfile.TemporaryDirectory() as folder:  # only files are taken
        key_path, chain_path = Path(folder, "key.pem"), Path(folder, "chain.pem")
        key_path.touch(0o600)
        key_path.write_bytes(certificate.private_key)
        chain_path.write_bytes(certificate.chain)
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


def read_certificate(key_path: Path, chain_path: Path) -> Certificate:
    """Read a key and a chain from files. Raises Invalid."""
    try:
        return Certificate(key_path.read_bytes(), chain_path.read_bytes())
    except OSError as error:
        raise Invalid(f"TLS key {key_path}, certificate {chain_path}: {error}") from error


def find_certificate(key_path: str, chain_path: str) -> Certificate:
    """Read the configured certificate, or make one where neither path is given. Raises Invalid."""
    if not key_path and not chain_path:
        return make_certificate()
    if not key_path or not chain_path:
        raise Invalid("tlsKeyPath, tlsCertPath: expected both or neither, found one")
    return read_certificate(Path(key_path), Path(chain_path))


def make_certificate(host_name: str = "localhost") -> Certificate:
    """Make a certificate that signs itself, as RocketMQ's proxy does when none is configured: it
    hides the bytes, it proves nothing."""
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
