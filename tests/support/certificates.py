"""A certificate authority of one's own, as a company has it, and what it signs for 127.0.0.1 and localhost."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Beatkeeper's tests")])
HOSTS = ("localhost", "127.0.0.1")


@dataclass(frozen=True)
class OwnCA:
    """`ca` is what clients are given, `certificate` and `key` what the server has."""

    ca: Path
    certificate: Path
    key: Path
    _signing: ec.EllipticCurvePrivateKey = field(repr=False)

    @classmethod
    def make(cls, folder: Path) -> "OwnCA":
        signing = ec.generate_private_key(ec.SECP256R1())
        authority = _signed(NAME, NAME, signing.public_key(), signing)
        ca = folder / "ca.pem"
        ca.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
        return cls(ca, folder / "server.pem", folder / "server.key", signing)._sign(HOSTS)

    def of_another_host(self, host: str) -> "OwnCA":
        """Its certificate is as good as any of this authority, but for where it is shown."""
        folder = self.ca.parent
        another = replace(self, certificate=folder / f"{host}.pem", key=folder / f"{host}.key")
        return another._sign([host])

    def _sign(self, hosts: Sequence[str]) -> "OwnCA":
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
        certificate = _signed(subject, NAME, key.public_key(), self._signing, hosts)
        self.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        self.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return self


def _signed(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    signing: ec.EllipticCurvePrivateKey,
    hosts: Sequence[str] = (),
) -> x509.Certificate:
    """Without hosts: an authority."""
    now, is_ca = datetime.now(UTC), not hosts
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
        names = [_alternative(host) for host in hosts]
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


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
