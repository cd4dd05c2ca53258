from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from pagemesh.config import MeshTlsConfig
from pagemesh.errors import ConfigError
from pagemesh.identity.certificates import Certificates
from pagemesh.identity.roles import MeshRole
from pagemesh.identity.throw_away import replace_file
from tests.support.certificates import Pair, make_certificate, write_encrypted_key
from tests.support.mesh_certificates import MeshAuthority

ROUTER = MeshRole.ROUTER


@pytest.fixture
def authority(tmp_path: Path) -> MeshAuthority:
    return MeshAuthority(tmp_path)


def refusal(settings: MeshTlsConfig, role: MeshRole = ROUTER) -> str:
    with pytest.raises(ConfigError) as raised:
        Certificates(settings, role)
    return raised.value.message


def test_three_files_belong_together() -> None:
    with pytest.raises(ConfigError, match="--mesh-key and --mesh-ca must be given too"):
        MeshTlsConfig(mesh_cert="a.crt")


def test_a_key_is_for_its_owner_alone(authority: MeshAuthority) -> None:
    settings = authority.issue("router", ROUTER)
    assert Path(settings.mesh_key or "").stat().st_mode & 0o777 == 0o600


def test_files_that_cannot_be_used_are_refused_by_flag_and_path(
    authority: MeshAuthority, tmp_path: Path
) -> None:
    good = authority.issue("good", ROUTER)
    other = authority.issue("other", ROUTER)
    paths = {"mesh_cert": good.mesh_cert, "mesh_key": good.mesh_key, "mesh_ca": good.mesh_ca}
    text, encrypted = tmp_path / "text", tmp_path / "encrypted"
    text.write_text("no certificate")
    write_encrypted_key(make_certificate(tmp_path, "pair"), encrypted)

    def refused(**bad: Any) -> str:
        return refusal(MeshTlsConfig(**{**paths, **{name: str(bad[name]) for name in bad}}))

    assert refused(mesh_ca=tmp_path / "gone") == (
        f"--mesh-ca is '{tmp_path}/gone', which cannot be read: No such file or directory"
    )
    assert refused(mesh_cert=text) == (
        f"--mesh-cert is '{text}', which has no certificate in PEM format"
    )
    assert refused(mesh_key=text) == (
        f"--mesh-key is '{text}', which has no private key in PEM format"
    )
    assert refused(mesh_key=encrypted) == f"--mesh-key is '{encrypted}', whose key is encrypted"
    assert refused(mesh_key=other.mesh_key) == (
        f"--mesh-key is '{other.mesh_key}', which is not the key of {good.mesh_cert}"
    )


def test_a_certificate_that_has_expired_is_refused_with_the_day(authority: MeshAuthority) -> None:
    settings = authority.issue("router", ROUTER, lifetime=-timedelta(minutes=1))
    message = refusal(settings)
    assert message.startswith(f"--mesh-cert is '{settings.mesh_cert}', which expired on 20")
    assert message.endswith(" UTC")


def test_a_certificate_of_another_role_is_refused(authority: MeshAuthority) -> None:
    settings = authority.issue("decode", MeshRole.DECODE)
    assert refusal(settings, MeshRole.DECODE) == (
        f"--mesh-cert is '{settings.mesh_cert}', whose DNS names are decode.pagemesh, but must be "
        "worker.pagemesh too"
    )
    assert "but must be router.pagemesh too" in refusal(settings)


def test_a_certificate_without_names_is_none(tmp_path: Path) -> None:
    pair: Pair = make_certificate(tmp_path, "plain")
    ca = str(pair.certificate)
    settings = MeshTlsConfig(str(pair.certificate), str(pair.key), ca)
    assert "whose DNS names are localhost, but must be router.pagemesh too" in refusal(settings)


def test_files_that_are_replaced_are_taken_up(authority: MeshAuthority) -> None:
    certificates = Certificates(authority.issue("router", ROUTER), ROUTER)
    before = certificates.current()
    assert certificates.current() is before
    authority.issue("router", ROUTER)
    after = certificates.current()
    assert after.generation == before.generation + 1
    assert (after.certificate, after.key) != (before.certificate, before.key)
    assert certificates.current() is after


def test_what_does_not_fit_together_yet_is_waited_for(authority: MeshAuthority) -> None:
    settings = authority.issue("router", ROUTER)
    new = authority.issue("new", ROUTER)
    certificates = Certificates(settings, ROUTER)
    before = certificates.current()
    with capture_logs() as logs:
        replace_file(Path(settings.mesh_cert or ""), Path(new.mesh_cert or "").read_bytes())
        assert certificates.current() is before
        assert certificates.current() is before
    assert [entry["event"] for entry in logs] == ["certificates_refused"]
    assert "is not the key of" in logs[0]["error"]
    replace_file(Path(settings.mesh_key or ""), Path(new.mesh_key or "").read_bytes())
    assert certificates.current().certificate == Path(new.mesh_cert or "").read_bytes()


def test_one_that_expires_while_it_is_used_is_told_of_in_plain_words(
    authority: MeshAuthority,
) -> None:
    settings = authority.issue("router", ROUTER, lifetime=timedelta(seconds=2))
    certificates = Certificates(settings, ROUTER)
    with capture_logs() as logs:
        certificates.current()
        assert logs == []
        time.sleep(2)
        certificates.current()
        certificates.current()
    assert [entry["event"] for entry in logs] == ["certificate_expired"]
    assert "which expired on 20" in logs[0]["error"]
    assert logs[0]["error"].endswith("no other process accepts it any more")
