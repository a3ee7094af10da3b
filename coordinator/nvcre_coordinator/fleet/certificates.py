"""The fleet's own small certificate authority: made once, kept in a Secret, renewed in time.

Agents check the coordinator's certificate against the CA in the ConfigMap `nvcre-coordinator-ca`. Any replica may find
the Secret missing and make one; the API server's AlreadyExists or Conflict picks the winner and the loser reads what
won. The CA lives for ten years and the serving certificate for ninety days; `TlsKeeper` looks again regularly, renews a
third before the end, and hands the newest certificate to every new TLS handshake without a restart. A CA that nears its
own end is replaced in two steps: the new one is published beside the old one, which stays in the bundle until it
expires; it signs from the first renewal on that comes a day later or cannot wait. So no agent is locked out. Only a
Secret that is lost, or deleted, starts anew: agents fail until the new ConfigMap has come to them.

With `manage=False` (cert-manager, or an operator's own files in the Secret) nothing is created, only read.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import ipaddress
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from nvcre_kube.client import CONNECTION_ERRORS, ApiError, KubeClient
from nvcre_kube.resources import CONFIG_MAPS, SECRETS, JsonObject, Resource

logger = logging.getLogger(__name__)

SECRET = "nvcre-coordinator-tls"  # noqa: S105 - a name
CA_CONFIG_MAP = "nvcre-coordinator-ca"
SERVICE = "nvcre-coordinator"
CA_LIFE = timedelta(days=3650)
SERVING_LIFE = timedelta(days=90)
BACKDATE = timedelta(hours=1)  # agents' clocks are not ours
LOOK_AGAIN_S = 60.0  # where somebody deleted the Secret, another replica may serve by a CA that agents do not have yet
SETTLED = timedelta(days=1)  # a new CA has come to every agent's file by then
RETRY_S = 5.0
ATTEMPTS = 5


class CertificateError(Exception):
    """The stored material cannot be used; the text names the object, the key and the remedy."""


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """PEM texts as they stand in the Secret."""

    ca_key: bytes
    ca_cert: bytes  # a bundle: the signing CA first, older ones after it
    key: bytes
    cert: bytes

    def serving_expires(self) -> datetime:
        return x509.load_pem_x509_certificate(self.cert).not_valid_after_utc


def names(namespace: str) -> tuple[str, ...]:
    return (SERVICE, f"{SERVICE}.{namespace}.svc", f"{SERVICE}.{namespace}.svc.cluster.local", "localhost")


def new_authority(now: datetime) -> tuple[bytes, bytes]:
    """(key, certificate) of a new CA, PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "nvcre-coordinator-ca")])
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
    cert = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATE)
        .not_valid_after(now + CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _pem(key), cert.public_bytes(serialization.Encoding.PEM)


def new_serving(ca_key: bytes, ca_cert: bytes, dns_names: tuple[str, ...], now: datetime) -> tuple[bytes, bytes]:
    """(key, certificate) for the gRPC server, PEM, signed by the first certificate of `ca_cert`."""
    signer = serialization.load_pem_private_key(ca_key, None)
    authority = x509.load_pem_x509_certificates(ca_cert)[0]
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise CertificateError(
            f"Secret {SECRET}, ca.key: an elliptic-curve key is expected; delete the Secret to renew"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    alternatives: list[x509.GeneralName] = [x509.DNSName(name) for name in dns_names]
    alternatives.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    cert = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, SERVICE)]))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATE)
        .not_valid_after(min(now + SERVING_LIFE, authority.not_valid_after_utc))
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    return _pem(key), cert.public_bytes(serialization.Encoding.PEM)


def renewed(material: TlsMaterial | None, dns_names: tuple[str, ...], now: datetime) -> TlsMaterial:
    """What the Secret should hold: the same object when nothing is due, else with what is due made anew."""
    if material is None:
        ca_key, ca_cert = new_authority(now)
        return TlsMaterial(ca_key, ca_cert, *new_serving(ca_key, ca_cert, dns_names, now))
    try:
        bundle = x509.load_pem_x509_certificates(material.ca_cert)
        serving = x509.load_pem_x509_certificate(material.cert)
        ca_key, ca_cert = material.ca_key, material.ca_cert
        fresh_ca = _due(bundle[0], now)
        if fresh_ca:
            ca_key, newest = new_authority(now)
            bundle = [old for old in bundle[:2] if old.not_valid_after_utc > now]
            ca_cert = newest + b"".join(old.public_bytes(serialization.Encoding.PEM) for old in bundle)
        trusted = _covers(serving, dns_names) and any(_signed_by(serving, authority) for authority in bundle)
        unsettled = fresh_ca or now < bundle[0].not_valid_before_utc + SETTLED
        can_wait = serving.not_valid_before_utc <= now < serving.not_valid_after_utc - SETTLED
        if trusted and (not _due(serving, now) or (unsettled and can_wait)):
            return TlsMaterial(ca_key, ca_cert, material.key, material.cert) if fresh_ca else material
        return TlsMaterial(ca_key, ca_cert, *new_serving(ca_key, ca_cert, dns_names, now))
    except (ValueError, TypeError) as error:
        raise CertificateError(
            f"Secret {SECRET} holds no usable PEM ({error}); delete it and it is made anew"
        ) from error


def _due(cert: x509.Certificate, now: datetime) -> bool:
    """Near its end, or not valid yet: made while a clock was ahead."""
    life = cert.not_valid_after_utc - cert.not_valid_before_utc
    return not cert.not_valid_before_utc <= now < cert.not_valid_after_utc - life / 3


def _covers(cert: x509.Certificate, dns_names: tuple[str, ...]) -> bool:
    found = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return set(dns_names) <= set(found.get_values_for_type(x509.DNSName))


def _signed_by(cert: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        cert.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


class TlsKeeper:
    """Keeps the Secret and the ConfigMap, and the credentials of the gRPC server that follow them."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        *,
        manage: bool = True,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        on_renewal: Callable[[datetime], None] = lambda _: None,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._manage = manage
        self._clock = clock
        self._on_renewal = on_renewal
        self._material: TlsMaterial | None = None
        self._served: TlsMaterial | None = None  # read from gRPC's own threads; both are immutable

    @property
    def material(self) -> TlsMaterial:
        if self._material is None:
            raise RuntimeError("certificates were not loaded")
        return self._material

    async def load(self) -> None:
        """Until certificates are there; a server that is not up yet is waited for."""
        while True:
            try:
                await self._ensure()
            except (*CONNECTION_ERRORS, ApiError) as error:
                logger.warning("certificates not loaded, trying again in_s=%s error=%r", RETRY_S, str(error))
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def run(self) -> None:
        """Looks again for ever: renews what is due, picks up what another replica or cert-manager renewed."""
        while True:
            await asyncio.sleep(LOOK_AGAIN_S)
            try:
                await self._ensure()
            except (*CONNECTION_ERRORS, ApiError, CertificateError) as error:
                logger.warning("certificates not renewed, serving the old ones error=%r", str(error))

    def server_credentials(self) -> grpc.ServerCredentials:
        """Credentials that give each new handshake the newest certificate."""
        self._served = self.material
        fetch = self._newest
        return grpc.dynamic_ssl_server_credentials(_configuration(self.material), fetch)  # type: ignore[arg-type]

    def _newest(self) -> grpc.ServerCertificateConfiguration | None:
        material = self.material
        if material is self._served:
            return None  # gRPC's word for unchanged
        self._served = material
        return _configuration(material)

    async def _ensure(self) -> None:
        material = await self._ensure_secret()
        if self._manage:
            await self._publish(material.ca_cert)
        if material != self._material:
            self._material = material
            expires = material.serving_expires()
            self._on_renewal(expires)
            logger.info("serving certificate in use expires=%s", expires.isoformat())

    async def _ensure_secret(self) -> TlsMaterial:
        for _ in range(ATTEMPTS):
            secret = await _get(self._client, SECRETS, SECRET, self._namespace)
            found = None if secret is None else _material_of(secret, need_ca_key=self._manage)
            if not self._manage:
                if found is None:
                    raise ApiError(
                        404, "NotFound", f"Secret {self._namespace}/{SECRET} with tls.key, tls.crt and ca.crt"
                    )
                return found
            wanted = renewed(found, names(self._namespace), self._clock())
            if wanted is found:
                return found
            try:
                if secret is None:
                    await self._client.create(SECRETS, self._secret(wanted), self._namespace)
                else:
                    secret.update(type=secret.get("type") or "Opaque", data=_encoded(wanted))
                    await self._client.update(SECRETS, secret)
            except ApiError as error:
                if not (error.already_exists or error.conflict):
                    raise
                continue  # another replica was faster: read what it made
            return wanted
        raise ApiError(409, "Conflict", f"Secret {self._namespace}/{SECRET} changes faster than it can be read")

    def _secret(self, material: TlsMaterial) -> JsonObject:
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": SECRET, "namespace": self._namespace, "labels": _LABELS},
            "type": "Opaque",
            "data": _encoded(material),
        }

    async def _publish(self, ca_cert: bytes) -> None:
        wanted = {"ca.crt": ca_cert.decode()}
        for _ in range(ATTEMPTS):
            found = await _get(self._client, CONFIG_MAPS, CA_CONFIG_MAP, self._namespace)
            try:
                if found is None:
                    config_map = {
                        "apiVersion": "v1",
                        "kind": "ConfigMap",
                        "metadata": {"name": CA_CONFIG_MAP, "namespace": self._namespace, "labels": _LABELS},
                        "data": wanted,
                    }
                    await self._client.create(CONFIG_MAPS, config_map, self._namespace)
                elif (found.get("data") or {}).get("ca.crt") != wanted["ca.crt"]:
                    found["data"] = wanted
                    await self._client.update(CONFIG_MAPS, found)
            except ApiError as error:
                if not (error.already_exists or error.conflict):
                    raise
                continue
            return


_LABELS = {"app.kubernetes.io/managed-by": "nvcre", "app.kubernetes.io/name": SERVICE}


def _configuration(material: TlsMaterial) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(material.key, material.cert)])


async def _get(client: KubeClient, resource: Resource, name: str, namespace: str) -> JsonObject | None:
    try:
        return await client.get(resource, name, namespace)
    except ApiError as error:
        if error.not_found:
            return None
        raise


def _encoded(material: TlsMaterial) -> dict[str, str]:
    parts = {
        "ca.key": material.ca_key,
        "ca.crt": material.ca_cert,
        "tls.key": material.key,
        "tls.crt": material.cert,
    }
    return {name: base64.b64encode(value).decode() for name, value in parts.items()}


def _material_of(secret: JsonObject, *, need_ca_key: bool) -> TlsMaterial | None:
    """None for an empty Secret (made by a person to be filled by us)."""
    data = secret.get("data") or {}
    if not data:
        return None
    needed = ("ca.crt", "tls.key", "tls.crt", *(("ca.key",) if need_ca_key else ()))
    if missing := [key for key in needed if not data.get(key)]:
        raise CertificateError(f"Secret {SECRET} lacks {', '.join(missing)}; delete it and it is made anew")
    try:
        values = {key: base64.b64decode(data.get(key) or "", validate=True) for key in (*needed, "ca.key")}
    except binascii.Error as error:
        raise CertificateError(f"Secret {SECRET} is not base64: {error}") from error
    return TlsMaterial(values["ca.key"], values["ca.crt"], values["tls.key"], values["tls.crt"])
