"""Holders narrowed down from what a lookup on Redis answers."""

from __future__ import annotations

from pagemesh.kvstore.redis_slots import LeadingHolders, SlotTable

TICK = b"\x7f"
TABLE = SlotTable("1", {0: "a", 1: "b", 9: "c"})


def packed(*masks: bytes) -> bytes:
    """Values behind their lengths; each mask begins with the number of zero bytes left out."""
    values = [TICK + mask for mask in masks]
    return b"".join(len(value).to_bytes(2, "big") + value for value in values)


def test_holders_end_where_their_bits_do() -> None:
    holders = LeadingHolders()
    answer = packed(b"\x00\x03\x02", b"\x00\x03\x02", b"\x00\x01\x02", b"\x01\x02")
    assert holders.narrow(answer, TABLE, 4)
    assert holders.result() == {"a": 3, "b": 2, "c": 4}


def test_bits_of_slots_that_are_nobodys_do_not_count() -> None:
    holders = LeadingHolders()
    assert not holders.narrow(packed(b"\x00\xfc"), TABLE, 1)
    assert holders.result() == {}


def test_there_is_no_more_to_ask_when_fewer_masks_came() -> None:
    holders = LeadingHolders()
    assert not holders.narrow(packed(b"\x00\x01", b"\x00\x01"), TABLE, 3)
    assert holders.result() == {"a": 2}


def test_a_second_part_goes_on_where_the_first_ended() -> None:
    holders = LeadingHolders()
    assert holders.narrow(packed(b"\x00\x03", b"\x00\x03"), TABLE, 2)
    assert holders.narrow(packed(b"\x00\x03", b"\x00\x02"), TABLE, 2)
    assert holders.result() == {"a": 3, "b": 4}


def test_a_slot_that_became_another_workers_between_two_parts_ends_there() -> None:
    holders = LeadingHolders()
    assert holders.narrow(packed(b"\x00\x03\x02"), TABLE, 1)
    changed = SlotTable("2", {0: "a", 1: "new", 2: "newer"})
    assert holders.narrow(packed(b"\x00\x07\x02"), changed, 1)
    assert holders.result() == {"a": 2, "b": 1, "c": 1}


def test_slots_far_up_need_no_long_masks() -> None:
    holders = LeadingHolders()
    table = SlotTable("1", {2047: "low", 2048: "high"})
    answer = packed(b"\xff\x80\x01", b"\xff\x00\x01")
    assert holders.narrow(answer, table, 2)
    assert holders.result() == {"low": 1, "high": 2}
