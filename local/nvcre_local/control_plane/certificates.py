"""The certificate authority of one control plane, and what it signs. Lives as long as the control plane's directory.

One authority for all: the API server's and the webhooks' serving certificates, and the client certificates that the API
server shows to etcd and to kubelets. A serving certificate does not pass as a client's, its key usage forbids that.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from nvcre_local.cluster_objects import write_secret
from nvcre_local.key_usage import key_usage

LOOPBACK = "127.0.0.1"
_VALID_FOR = timedelta(days=365)
_SLACK = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Pair:
    """Files of a certificate and its key, PEM."""

    certificate: Path
    key: Path


class Authority:
    """`directory` is private and gets every file."""

    def __init__(self, directory: Path, now: datetime) -> None:
        self._directory = directory
        self._now = now
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("nvcre local control plane CA")
        certificate = (
            self._builder(self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(key_usage(signs_certificates=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.pem = certificate.public_bytes(serialization.Encoding.PEM).decode()
        self.certificate = directory / "ca.crt"
        self.certificate.write_text(self.pem)

    def serving(self, name: str) -> Pair:
        """For loopback and localhost, and as a peer that is both sides (etcd)."""
        return self._issue(name, (ExtendedKeyUsageOID.SERVER_AUTH,))

    def client(self, name: str) -> Pair:
        return self._issue(name, (ExtendedKeyUsageOID.CLIENT_AUTH,))

    def peer(self, name: str) -> Pair:
        return self._issue(name, (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH))

    def _issue(self, name: str, usages: tuple[x509.ObjectIdentifier, ...]) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        names = [
            x509.DNSName("localhost"),
            x509.DNSName("kubernetes.default.svc"),
            x509.IPAddress(ip_address(LOOPBACK)),
        ]
        certificate = (
            self._builder(_name(name), key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        pair = Pair(self._directory / f"{name}.crt", write_key(self._directory / f"{name}.key", key))
        pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return pair

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - _SLACK)
            .not_valid_after(self._now + _VALID_FOR)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )


def write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> Path:
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return write_secret(path, pem.decode())


def service_account_keys(directory: Path) -> Pair:
    """The key that signs ServiceAccounts' tokens; as `certificate`, its public half."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = directory / "service-accounts.pub"
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return Pair(public, write_key(directory / "service-accounts.key", key))


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
