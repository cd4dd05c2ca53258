"""Which keys open the door, and what a file may say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pagemesh.config.environment import API_KEY_VARIABLE
from pagemesh.config.router import TenantsConfig
from pagemesh.errors import ConfigError, UnauthenticatedError
from pagemesh.router.tenants.keys import hash_of, new_key
from pagemesh.router.tenants.registry import Registry
from pagemesh.router.tenants.tenant import Limits, Tenant

ACME, OTHER = "pm-acme-0123456789abcdef", "pm-other-0123456789abcdef"


@pytest.fixture(autouse=True)
def no_key_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(API_KEY_VARIABLE, raising=False)


def registry_of(tmp_path: Path, text: str, **config: object) -> Registry:
    path = tmp_path / "keys.yaml"
    path.write_text(text)
    return Registry(TenantsConfig(api_key_file=str(path), **config))  # type: ignore[arg-type]


def entry(**fields: object) -> str:
    return json.dumps({"tenants": {"acme": {"keys": [hash_of(ACME)], **fields}}})


def test_keys_are_long_and_different_and_hashes_do_not_show_them() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    for key in keys:
        assert key.startswith("pm-")
        assert len(key) == len("pm-") + 43  # 32 bytes in base64
        assert key not in hash_of(key)


def test_without_keys_everybody_may_call_within_the_limits_for_all() -> None:
    registry = Registry(TenantsConfig(requests_per_minute=5))
    assert registry.tenant_of(None) == Tenant("", Limits(requests_per_minute=5))
    assert registry.tenant_of("whatever") == registry.tenant_of(None)


def test_keys_of_the_command_line_belong_to_the_default_tenant() -> None:
    registry = Registry(TenantsConfig(api_key=("one", "two")))
    assert registry.tenant_of("one") == registry.tenant_of("two") == Tenant("default")
    for wrong in (None, "", "on", "one ", "ONE", "three"):
        with pytest.raises(UnauthenticatedError):
            registry.tenant_of(wrong)


def test_the_environment_says_the_keys_that_the_command_line_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(API_KEY_VARIABLE, "one, two,")
    assert Registry(TenantsConfig()).tenant_of("two").name == "default"
    registry = Registry(TenantsConfig(api_key=("three",)))
    assert registry.tenant_of("three").name == "default"
    with pytest.raises(UnauthenticatedError):
        registry.tenant_of("one")


def test_a_file_names_tenants_with_keys_and_limits(tmp_path: Path) -> None:
    text = f"""
tenants:
  acme:
    keys:
      - {hash_of(ACME)}   # the first
      - {hash_of("pm-second")}
    requests_per_minute: 60
    tokens_per_minute: null
  other:
    keys: [{hash_of(OTHER)}]
"""
    registry = registry_of(tmp_path, text, tokens_per_minute=1000, concurrent_requests=4)
    assert registry.tenant_of(ACME) == Tenant("acme", Limits(60, None, 4))
    assert registry.tenant_of("pm-second").name == "acme"
    assert registry.tenant_of(OTHER) == Tenant("other", Limits(None, 1000, 4))


def test_a_file_may_say_how_long_a_tenants_answers_are(tmp_path: Path) -> None:
    def limits(**fields: object) -> Limits:
        registry = registry_of(
            tmp_path, entry(**fields), max_output_tokens=9, max_output_tokens_policy="refuse"
        )
        return registry.tenant_of(ACME).limits

    assert limits() == Limits(max_output_tokens=9, max_output_tokens_policy="refuse")
    assert limits(max_output_tokens=90).max_output_tokens == 90
    assert limits(max_output_tokens=None).max_output_tokens is None
    assert limits(max_output_tokens_policy="cut") == Limits(max_output_tokens=9)


def test_a_file_without_keys_lets_nobody_in(tmp_path: Path) -> None:
    registry = registry_of(tmp_path, "")
    for key in (None, "", ACME):
        with pytest.raises(UnauthenticatedError):
            registry.tenant_of(key)


def test_a_removed_key_is_refused_from_then_on(tmp_path: Path) -> None:
    registry = registry_of(tmp_path, entry())
    assert registry.tenant_of(ACME).name == "acme"
    assert registry.load(b"tenants: {}") == 0
    with pytest.raises(UnauthenticatedError):
        registry.tenant_of(ACME)


def test_the_files_limits_of_the_default_tenant_are_those_of_the_command_lines_keys(
    tmp_path: Path,
) -> None:
    text = "tenants: {default: {requests_per_minute: 7}}"
    registry = registry_of(tmp_path, text, api_key=("one",))
    assert registry.tenant_of("one") == Tenant("default", Limits(requests_per_minute=7))


def test_a_wrong_key_is_never_shown(tmp_path: Path) -> None:
    registry = registry_of(tmp_path, entry())
    wrong = "pm-" + "s3cret" * 6
    with pytest.raises(UnauthenticatedError, match="Incorrect API key provided: pm-s3…") as found:
        registry.tenant_of(wrong)
    assert "s3cret" not in found.value.message
    # Nothing at all of one that might be known by its beginning.
    with pytest.raises(UnauthenticatedError, match=r"provided$"):
        registry.tenant_of("hunter2")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "is neither YAML nor JSON at line 1, column 2"),
        ("[1]", "the file: Input should be"),
        ("keys: []", "keys: Extra inputs are not permitted"),
        ("tenants: {acme: {limits: 3}}", "tenants.acme.limits: Extra inputs"),
        (entry(requests_per_minute=0), "tenants.acme.requests_per_minute: Input should be greater"),
        (
            entry(tokens_per_minute="9"),
            "tenants.acme.tokens_per_minute: Input should be a valid int",
        ),
        (
            entry(max_output_tokens=0),
            "tenants.acme.max_output_tokens: Input should be greater",
        ),
        (
            entry(max_output_tokens_policy="drop"),
            "tenants.acme.max_output_tokens_policy: Input should be 'cut' or 'refuse'",
        ),
        ("tenants: {'a b': {}}", "the tenant 'a b' has a name with other than"),
        ("tenants: {a: {}, b: {}, a: {}}", "'a' in line 1 is there a second time"),
        (f"tenants: {{a: {{keys: ['{ACME}']}}}}", r"tenants.a.keys\[0\] is not sha256: and 64"),
        (
            json.dumps({"tenants": {t: {"keys": [hash_of(ACME)]} for t in ("a", "b")}}),
            r"tenants.b.keys\[0\] is a key of the tenant a as well",
        ),
        ("tenants: {a: {keys: [2026-99-99]}}", "is neither YAML nor JSON"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_name(
    tmp_path: Path, text: str, complaint: str
) -> None:
    with pytest.raises(
        ConfigError, match=f"--api-key-file is .*keys.yaml': .*{complaint}"
    ) as found:
        registry_of(tmp_path, text)
    # What stands there by mistake may be a key.
    assert ACME not in found.value.message
    registry = registry_of(tmp_path, entry())
    with pytest.raises(ConfigError):
        registry.load(text.encode())
    assert registry.tenant_of(ACME).name == "acme"


def test_files_that_cannot_be_read_are_refused_by_name(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match=r"none.yaml': No such file"):
        Registry(TenantsConfig(api_key_file=missing))
    (tmp_path / "none.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        Registry(TenantsConfig(api_key_file=missing))


@pytest.mark.parametrize("key", ["", "a b", "a,b", "schlüssel", "a\n"])
def test_keys_that_no_header_can_carry_are_refused_without_showing_them(key: str) -> None:
    with pytest.raises(ConfigError, match=r"--api-key is '\*\*\*'"):
        TenantsConfig(api_key=(key,))


def test_settings_do_not_show_their_keys() -> None:
    assert "s3cret" not in repr(TenantsConfig(api_key=("s3cret",)))


@pytest.mark.parametrize(
    "name", ["requests_per_minute", "tokens_per_minute", "max_output_tokens", "limits_shared_by"]
)
def test_limits_are_positive(name: str) -> None:
    with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')} is 0"):
        TenantsConfig(**{name: 0})  # type: ignore[arg-type]
