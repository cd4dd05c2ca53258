"""Certificates that cannot be used are refused by the name of their flag."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagemesh.config import TlsConfig
from pagemesh.errors import ConfigError
from pagemesh.gateway.tls import check_tls, transport_socket
from tests.support.certificates import Pair, make_certificate, write_encrypted_key


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_certificate(tmp_path_factory.mktemp("certificates"), "server")


def test_what_fits_is_taken(pair: Pair, tmp_path: Path) -> None:
    check_tls(TlsConfig())
    check_tls(pair.settings(ssl_ca_certs=str(pair.certificate)))
    both = tmp_path / "both.pem"
    both.write_text(pair.key.read_text() + pair.certificate.read_text())
    check_tls(TlsConfig(ssl_certfile=str(both)))


def test_a_missing_file_is_refused(pair: Pair) -> None:
    for flag, settings in (
        ("--ssl-certfile", TlsConfig(ssl_certfile="/nowhere")),
        ("--ssl-keyfile", pair.settings(ssl_keyfile="/nowhere")),
        ("--ssl-ca-certs", pair.settings(ssl_ca_certs="/nowhere")),
    ):
        with pytest.raises(ConfigError, match=f"^{flag} is '/nowhere', which cannot be read: No"):
            check_tls(settings)


def test_a_file_without_what_it_is_for_is_refused(pair: Pair, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(b"\xff\x00 no PEM")
    for flag, kind, settings in (
        ("--ssl-certfile", "CERTIFICATE", pair.settings(ssl_certfile=str(text))),
        ("--ssl-keyfile", "PRIVATE KEY", pair.settings(ssl_keyfile=str(text))),
        ("--ssl-certfile", "PRIVATE KEY", pair.settings(ssl_keyfile=None)),
        ("--ssl-ca-certs", "CERTIFICATE", pair.settings(ssl_ca_certs=str(pair.key))),
    ):
        with pytest.raises(ConfigError, match=f"^{flag} is '.*', which has no {kind} in PEM"):
            check_tls(settings)


def test_a_key_of_another_certificate_is_refused(pair: Pair, tmp_path: Path) -> None:
    other = make_certificate(tmp_path, "other")
    with pytest.raises(ConfigError, match=r"^--ssl-certfile is .* and --ssl-keyfile is .*MISMATCH"):
        check_tls(pair.settings(ssl_keyfile=str(other.key)))


def test_broken_pem_is_refused(pair: Pair, tmp_path: Path) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text(pair.certificate.read_text().replace("M", "-", 3))
    for flag, settings in (
        ("--ssl-certfile", pair.settings(ssl_certfile=str(broken))),
        ("--ssl-ca-certs", pair.settings(ssl_ca_certs=str(broken))),
    ):
        with pytest.raises(ConfigError, match=f"^{flag} is .*, which cannot be used"):
            check_tls(settings)


def test_an_encrypted_key_is_refused_instead_of_asking_for_a_password(
    pair: Pair, tmp_path: Path
) -> None:
    encrypted = tmp_path / "encrypted.key"
    write_encrypted_key(pair, encrypted)
    with pytest.raises(ConfigError, match=r"^--ssl-keyfile is .*, whose key is encrypted$"):
        check_tls(pair.settings(ssl_keyfile=str(encrypted)))


@pytest.mark.parametrize(
    "settings",
    [{"ssl_keyfile": "k"}, {"ssl_ca_certs": "c"}, {"ssl_cert_reqs": 0}],
    ids=lambda settings: next(iter(settings)),
)
def test_settings_of_tls_need_a_certificate(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="but must be unset without --ssl-certfile"):
        TlsConfig(**settings)  # type: ignore[arg-type]


def test_checking_clients_needs_authorities() -> None:
    with pytest.raises(ConfigError, match=r"^--ssl-cert-reqs is 2, which needs --ssl-ca-certs"):
        TlsConfig(ssl_certfile="c", ssl_cert_reqs=2)


def test_the_files_that_name_certificates_do_not_pile_up(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for _ in range(2):
        transport_socket(pair.settings(), watched=True)
    (folder,) = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    (written,) = folder.iterdir()
    assert str(pair.key) in written.read_text()
    assert "PRIVATE" not in written.read_text()


def test_a_folder_that_others_can_write_is_refused(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    transport_socket(pair.settings(), watched=True)
    (folder,) = tmp_path.iterdir()
    folder.chmod(0o777)
    with pytest.raises(ConfigError, match="must be a folder that this user alone can write"):
        transport_socket(pair.settings(), watched=True)
