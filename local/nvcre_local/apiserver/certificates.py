"""A certificate authority of one process's life, and the certificate the server shows on its TLS port.

kubectl sends a kubeconfig's token over TLS only (clientcmd leaves credentials out for http servers), so this one
needs TLS to be told who asks.  Keys stay in memory, but for the moment in which `ssl` reads them from a private file.
"""

from __future__ import annotations

import ipaddress
import ssl
import tempfile
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from nvcre_local.key_usage import key_usage

_VALID_FOR = timedelta(days=365)
_SLACK = timedelta(hours=1)  # clocks of containers on one machine agree, those of tests may not
_ADDRESSES = ("127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class ServingCertificate:
    """`authority` is the PEM a client trusts; `context` is ready to serve."""

    authority: str
    context: ssl.SSLContext


def make(now: datetime) -> ServingCertificate:
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority_name, name = _name("nvcre embedded API server CA"), _name("nvcre embedded API server")
    authority = (
        _builder(authority_name, authority_name, authority_key.public_key(), authority_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(key_usage(signs_certificates=True), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    names = [x509.DNSName("localhost"), *(x509.IPAddress(ipaddress.ip_address(address)) for address in _ADDRESSES)]
    certificate = (
        _builder(name, authority_name, key.public_key(), authority_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    return ServingCertificate(_pem(authority).decode(), _context(_pem(certificate), key))


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePublicKey,
    now: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SLACK)
        .not_valid_after(now + _VALID_FOR)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _context(certificate: bytes, key: ec.EllipticCurvePrivateKey) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    plain = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with tempfile.TemporaryDirectory(prefix="nvcre-apiserver-") as directory:  # mode 0700
        path = Path(directory) / "serving.pem"
        path.write_bytes(certificate + plain)
        context.load_cert_chain(path)
    return context
