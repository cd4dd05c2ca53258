"""A key is added to a file; what people wrote there stays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pagemesh.errors import ConfigError
from pagemesh.router.tenants.key_file import read_content
from pagemesh.router.tenants.key_file_edit import add_key, with_key
from pagemesh.router.tenants.keys import hash_of

ONE, TWO, NEW = hash_of("one"), hash_of("two"), hash_of("new")

WRITTEN = f"""\
# Who may call.
tenants:
    acme:   # pays
        requests_per_minute: 60
        keys:
        - {ONE}   # Ada's
        - "{TWO}"

    other:
        keys: [{hash_of("other")}]   # on one line
# The end.
"""


def test_comments_and_style_stay() -> None:
    assert with_key(WRITTEN, "acme", NEW) == WRITTEN.replace(
        f'        - "{TWO}"\n', f'        - "{TWO}"\n        - {NEW}\n'
    )
    assert with_key(WRITTEN, "third", NEW) == WRITTEN.replace(
        "# The end.\n", f"    third:\n      keys:\n        - {NEW}\n# The end.\n"
    )


def test_what_is_written_on_one_line_is_written_anew() -> None:
    text = with_key(WRITTEN, "other", NEW)
    assert read_content(text).tenants["other"].keys == [hash_of("other"), NEW]
    assert read_content(text).tenants["acme"] == read_content(WRITTEN).tenants["acme"]


def test_json_stays_json() -> None:
    text = json.dumps({"tenants": {"acme": {"keys": [ONE], "tokens_per_minute": 7}}})
    new = json.loads(with_key(text, "acme", NEW))
    assert new == {"tenants": {"acme": {"keys": [ONE, NEW], "tokens_per_minute": 7}}}


@pytest.mark.parametrize("text", ["", "# Nobody yet.\n", "tenants: {}\n", "tenants:\n  acme: {}\n"])
def test_an_empty_file_gets_its_first_key(text: str) -> None:
    new = with_key(text, "acme", NEW)
    assert yaml.safe_load(new) == {"tenants": {"acme": {"keys": [NEW]}}}
    assert new.startswith("# Nobody") == text.startswith("# Nobody")


NAMES = st.sampled_from(["a", "b", "x.y", "1", "null", "true"])


@given(st.lists(NAMES, min_size=1, max_size=8))
def test_many_keys_are_all_there(tenants: list[str]) -> None:
    text = ""
    for index, tenant in enumerate(tenants):
        text = with_key(text, tenant, hash_of(str(index)))
    found = read_content(text).tenants
    assert {name: entry.keys for name, entry in found.items()} == {
        name: [hash_of(str(index)) for index, each in enumerate(tenants) if each == name]
        for name in tenants
    }


def test_a_file_is_made_for_its_owner_alone_and_keeps_its_mode(tmp_path: Path) -> None:
    path, link = tmp_path / "keys.yaml", tmp_path / "link.yaml"
    add_key(path, "acme", ONE)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    link.symlink_to(path)
    add_key(link, "acme", NEW)
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    assert read_content(path.read_text()).tenants["acme"].keys == [ONE, NEW]
    assert sorted(tmp_path.iterdir()) == [path, link]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("{", "is neither YAML nor JSON"), ("tenants: {a: {keys: [pm-plain]}}", "is not sha256")],
)
def test_a_file_that_cannot_be_used_is_left_alone(
    tmp_path: Path, text: str, complaint: str
) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"--file is .*{complaint}"):
        add_key(path, "acme", NEW)
    assert path.read_text() == text


def test_a_file_that_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--file is .*keys.yaml': No such file"):
        add_key(tmp_path / "none" / "keys.yaml", "acme", NEW)
    (tmp_path / "keys.yaml").mkdir()
    with pytest.raises(ConfigError, match=r"--file is .*cannot be read"):
        add_key(tmp_path / "keys.yaml", "acme", NEW)
