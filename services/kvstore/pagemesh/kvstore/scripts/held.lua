-- ARGV: slot, token, first bucket, how many blocks to look at. The names that the slot has in these buckets,
-- the bucket to go on with (-1 if the slot is no longer that token's), and whether there is none.
local function name_of(bucket, field)
  if SHORTENED == 1 then
    return field
  end
  local start = floor(bucket * divisor / 256)
  return string.char(floor(start / 256), start % 256) .. field
end

local slot, token, bucket, budget = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
if not owned_slot(slot, token) then
  return { -1, '', 1 }
end
local index, bit_value = place_in_mask(slot)
local num_buckets = floor(16777216 / divisor)
local names = {}
while bucket < num_buckets and budget > 0 do
  local entries = call('HGETALL', bucket_key(bucket))
  for i = 1, #entries, 2 do
    if has_bit(entries[i + 1], index, bit_value) then
      names[#names + 1] = name_of(bucket, entries[i])
    end
  end
  bucket, budget = bucket + 1, budget - 1 - #entries / 2
end
return { bucket, table.concat(names), bucket == num_buckets and 1 or 0 }
