-- Masks: read and changed as strings, see `places.lua`.
local char, rep, band, bor, bnot = string.char, string.rep, bit.band, bit.bor, bit.bnot

-- Index of a slot's byte in masks, and the slot's bit there.
local function place_in_mask(slot)
  return floor(slot / 8), 2 ^ (slot % 8)
end

local function has_bit(value, index, bit_value)
  local at = index - byte(value, 2) + 3
  if at < 3 or at > #value then
    return false
  end
  return band(byte(value, at), bit_value) ~= 0
end

-- The value with one more bit, which it did not have; of none where the block is new.
local function with_bit(value, index, bit_value, stamp)
  if not value then
    local skipped = math.min(index, 255)
    return char(stamp, skipped) .. rep('\0', index - skipped) .. char(bit_value)
  end
  local skipped = byte(value, 2)
  if index < skipped then
    local gap = rep('\0', skipped - index - 1)
    return char(stamp, index, bit_value) .. gap .. sub(value, 3)
  end
  local at = index - skipped + 3
  local gap = rep('\0', at - 1 - #value)
  local rest = at <= #value and byte(value, at) or 0
  return char(stamp, skipped) .. sub(value, 3, at - 1) .. gap .. char(bor(rest, bit_value)) .. sub(value, at + 1)
end

-- The value without some bits, given as bytes by their index, and whether it changed; nil if none is left.
local function without_bits(value, bytes)
  local skipped, changed = byte(value, 2), false
  local first, last
  local mask = { byte(value, 3, #value) }
  for i = 1, #mask do
    local gone = bytes[skipped + i - 1]
    if gone and band(mask[i], gone) ~= 0 then
      mask[i] = band(mask[i], bnot(gone))
      changed = true
    end
    if mask[i] ~= 0 then
      first, last = first or i, i
    end
  end
  if not changed then
    return value, false
  end
  if not first then
    return nil, true
  end
  first = math.min(first, 256 - skipped)
  return char(byte(value, 1), skipped + first - 1) .. char(unpack(mask, first, last)), true
end

-- Slots whose bits are in a value.
local function slots_in(value)
  local slots = {}
  for at = 3, #value do
    local eight = byte(value, at)
    for i = 0, 7 do
      if band(eight, 2 ^ i) ~= 0 then
        slots[#slots + 1] = (byte(value, 2) + at - 3) * 8 + i
      end
    end
  end
  return slots
end
