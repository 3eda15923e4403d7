"""The certificate of the gRPC port: the configured one, or one made for this run."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from pathlib import Path

from tieredstore.errors import Invalid

_VALID_DAYS = 3650


@dataclass(frozen=True, slots=True)
class Certificate:
    """A private key and its certificate chain, both PEM."""

    private_key: bytes
    chain: bytes

    def __repr__(self) -> str:
        return "Certificate(…)"


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
