"""What the Secret should hold: made once, renewed in time, old authorities kept as long as they live."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from nvcre_coordinator.fleet.certificates import (
    CA_LIFE,
    SERVING_LIFE,
    CertificateError,
    TlsMaterial,
    names,
    new_serving,
    renewed,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = names("nvcre-system")


@pytest.fixture(scope="module")
def material() -> TlsMaterial:
    return renewed(None, NAMES, NOW)


def serving(material: TlsMaterial) -> x509.Certificate:
    return x509.load_pem_x509_certificate(material.cert)


def authorities(material: TlsMaterial) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(material.ca_cert)


def test_the_names_are_those_that_agents_check(material: TlsMaterial) -> None:
    found = serving(material).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"nvcre-coordinator", "nvcre-coordinator.nvcre-system.svc", "localhost"} <= set(
        found.get_values_for_type(x509.DNSName)
    )
    assert [str(address) for address in found.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    serving(material).verify_directly_issued_by(authorities(material)[0])


def test_nothing_is_done_while_nothing_is_due(material: TlsMaterial) -> None:
    assert renewed(material, NAMES, NOW + SERVING_LIFE / 2) is material


def test_the_serving_certificate_is_renewed_before_its_end_by_the_same_authority(material: TlsMaterial) -> None:
    later = NOW + SERVING_LIFE * 0.7
    fresh = renewed(material, NAMES, later)
    assert fresh.ca_cert == material.ca_cert
    assert fresh.serving_expires() > later + timedelta(days=80)


def test_a_certificate_that_lacks_a_name_is_made_anew(material: TlsMaterial) -> None:
    assert renewed(material, (*NAMES, "another.example"), NOW).cert != material.cert


def served_since(material: TlsMaterial, then: datetime) -> TlsMaterial:
    key, cert = new_serving(material.ca_key, material.ca_cert, NAMES, then)
    return replace(material, key=key, cert=cert)


@pytest.mark.parametrize("age", [SERVING_LIFE * 0, SERVING_LIFE * 0.7])
def test_a_new_authority_is_published_beside_the_old_one_before_it_signs(material: TlsMaterial, age: timedelta) -> None:
    """Also where the serving certificate is due at the same time."""
    later = NOW + CA_LIFE * 0.7
    before = served_since(material, later - age)
    published = renewed(before, NAMES, later)
    assert authorities(published)[1:] == authorities(material)
    assert (published.key, published.cert) == (before.key, before.cert)
    assert renewed(published, NAMES, later + timedelta(hours=1)) is published
    switched = renewed(published, NAMES, later - age + max(SERVING_LIFE * 0.7, age + timedelta(days=2)))
    assert switched.ca_cert == published.ca_cert
    serving(switched).verify_directly_issued_by(authorities(published)[0])


def test_a_new_authority_signs_at_once_where_the_serving_certificate_is_at_its_end(material: TlsMaterial) -> None:
    fresh = renewed(material, NAMES, NOW + CA_LIFE * 0.7)
    assert authorities(fresh)[1:] == authorities(material)
    serving(fresh).verify_directly_issued_by(authorities(fresh)[0])


def test_what_was_made_while_a_clock_was_ahead_is_made_anew_at_once(material: TlsMaterial) -> None:
    """Agents refuse it as not valid yet; they know the old authority still."""
    ahead = renewed(material, NAMES, NOW + CA_LIFE * 0.7)
    mended = renewed(ahead, NAMES, NOW + timedelta(days=1))
    assert authorities(mended)[1:] == authorities(ahead)
    assert serving(mended).not_valid_before_utc < NOW + timedelta(days=1)
    serving(mended).verify_directly_issued_by(authorities(mended)[0])


def test_a_certificate_of_another_authority_is_replaced(material: TlsMaterial) -> None:
    other = renewed(None, NAMES, NOW)
    mixed = replace(material, key=other.key, cert=other.cert)
    serving(renewed(mixed, NAMES, NOW)).verify_directly_issued_by(authorities(material)[0])


def test_material_that_is_no_pem_names_the_secret_and_the_remedy(material: TlsMaterial) -> None:
    with pytest.raises(CertificateError, match=r"nvcre-coordinator-tls .* delete it"):
        renewed(replace(material, cert=b"nonsense"), NAMES, NOW)
