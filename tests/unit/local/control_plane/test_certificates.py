"""What the authority of a control plane signs."""

import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from nvcre_local.control_plane.certificates import Authority, service_account_keys

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, NOW)


def usages(path: Path) -> list:
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    return list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)


def test_a_serving_certificate_does_not_pass_as_a_client(authority: Authority):
    assert usages(authority.serving("s").certificate) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert usages(authority.client("c").certificate) == [ExtendedKeyUsageOID.CLIENT_AUTH]


def test_it_is_for_loopback_and_signed_by_the_authority(authority: Authority):
    certificate = x509.load_pem_x509_certificate(authority.serving("s").certificate.read_bytes())
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.pem.encode()))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]


def test_keys_are_readable_by_us_alone(authority: Authority, tmp_path: Path):
    for pair in (authority.serving("s"), service_account_keys(tmp_path)):
        assert pair.key.stat().st_mode & 0o777 == 0o600


def test_openssl_takes_the_files(authority: Authority):
    pair = authority.peer("p")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    context.load_verify_locations(authority.certificate)
