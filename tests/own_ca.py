"""A certificate authority of one's own, as a company has it, and what it signs for 127.0.0.1 and localhost."""

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class OwnCA:
    """`ca` is what clients are given, `certificate` and `key` what the server has."""

    ca: Path
    certificate: Path
    key: Path

    @classmethod
    def make(cls, folder: Path) -> "OwnCA":
        made = cls(folder / "ca.pem", folder / "server.pem", folder / "server.key")
        ca_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Beatkeeper's tests")])
        authority = _signed(name, name, ca_key.public_key(), ca_key, is_ca=True)
        host = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
        certificate = _signed(host, name, server_key.public_key(), ca_key, is_ca=False)
        made.ca.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
        made.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        made.key.write_bytes(
            server_key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return made


def _signed(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    signing: ec.EllipticCurvePrivateKey,
    is_ca: bool,
) -> x509.Certificate:
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False
        )
    )
    if not is_ca:
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    else:
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        builder = builder.add_extension(usage, critical=True)
    return builder.sign(signing, hashes.SHA256())
