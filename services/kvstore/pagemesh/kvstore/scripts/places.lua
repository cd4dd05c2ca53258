-- What all scripts begin with: where things lie.
--
-- In front of them stand `prefix`, with which all keys begin, and `divisor`: so many of the numbers that the
-- first three bytes of a name can be share a bucket. A block is a field of the hash that is its bucket: small
-- hashes are kept packed, which takes a quarter of the memory that a key for each block would. Its value is
--   byte 1    when it was last of use, see `clock.lua`
--   byte 2    how many zero bytes the mask begins with, which are left out
--   byte 3..  the mask from there on to its last byte that is not zero; slot n is bit n % 8 of byte n / 8
local call, sub, byte, floor = redis.call, string.sub, string.byte, math.floor
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

local function slot_key(slot)
  return prefix .. 'slot:' .. slot
end
