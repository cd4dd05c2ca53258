"""Whose blocks share names."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pagemesh.router.tenants.salt import tenant_salt

TEXTS = st.text(st.characters(exclude_categories=()), max_size=6)
"""Half surrogate pairs too: JSON can hold them."""
NAMES = st.text(max_size=6)


def test_without_keys_and_salt_names_are_not_salted() -> None:
    assert tenant_salt("", "") == b""


@given(one=st.tuples(NAMES, TEXTS), other=st.tuples(NAMES, TEXTS))
def test_only_equal_tenants_with_equal_salts_share(
    one: tuple[str, str], other: tuple[str, str]
) -> None:
    assert (tenant_salt(*one) == tenant_salt(*other)) == (one == other)


def test_a_body_cannot_spell_another_tenants_salt() -> None:
    assert tenant_salt("a", "bc") != tenant_salt("ab", "c") != tenant_salt("", "abc")
    # Block hashes are compared between processes of different versions.
    assert tenant_salt("acme", "s").hex() == "c88b1651204d109d0f34ce91f10debf9"
