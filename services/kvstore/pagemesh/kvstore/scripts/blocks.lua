-- What all scripts that read or write blocks begin with.
--
-- In front of them stand `prefix`, with which all keys begin, and `divisor`: so many of the numbers that the
-- first three bytes of a name can be share a bucket. A block is a field of the hash that is its bucket: small
-- hashes are kept packed, which takes a quarter of the memory that a key for each block would. Its value is
--   byte 1    when it was last of use, see `clock.lua`
--   byte 2    how many zero bytes the mask begins with, which are left out
--   byte 3..  the mask from there on to its last byte that is not zero; slot n is bit n % 8 of byte n / 8
local call, sub, byte, char, rep = redis.call, string.sub, string.byte, string.char, string.rep
local band, bor, bxor, bnot = bit.band, bit.bor, bit.bxor, bit.bnot
local floor = math.floor
local NAME_BYTES = 16
-- A field leaves out the first bytes of the name, as many as its bucket tells.
local SHORTENED = divisor <= 256 and 3 or 1
local meta_key = prefix .. 'meta'

local function bucket_key(bucket)
  return prefix .. 'b:' .. bucket
end

local function place_of(name)
  local a, b, c = byte(name, 1, 3)
  return bucket_key(floor((a * 65536 + b * 256 + c) / divisor)), sub(name, SHORTENED)
end

local function name_of(bucket, field)
  if SHORTENED == 1 then
    return field
  end
  local start = floor(bucket * divisor / 256)
  return char(floor(start / 256), start % 256) .. field
end

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

local function slot_key(slot)
  return prefix .. 'slot:' .. slot
end

-- Facts of a slot, as long as it is the one's who has this token.
local function owned_slot(slot, token)
  local facts = call('HMGET', slot_key(slot), 'token', 'max', 'count', 'evicted', 'xor')
  if facts[1] ~= token then
    return nil
  end
  return {
    max = tonumber(facts[2]),
    count = tonumber(facts[3]),
    evicted = tonumber(facts[4]),
    xor = { struct.unpack('>i4i4i4i4', facts[5]) },
  }
end

local function toggle(xor, name)
  local a, b, c, d = struct.unpack('>i4i4i4i4', name)
  xor[1], xor[2], xor[3], xor[4] = bxor(xor[1], a), bxor(xor[2], b), bxor(xor[3], c), bxor(xor[4], d)
end

local function save_slot(slot, facts)
  local xor = facts.xor
  call('HSET', slot_key(slot), 'count', facts.count, 'evicted', facts.evicted,
    'xor', struct.pack('>i4i4i4i4', xor[1], xor[2], xor[3], xor[4]))
end
