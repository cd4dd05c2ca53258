-- ARGV: slot, token, names, the most blocks of the index or 0. Gives -1 if the slot is not the caller's,
-- -2 if that were more blocks than the worker announced, else how many blocks were given up.
local slot, token, names, max_blocks = tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])
local facts = owned_slot(slot, token)
if not facts then
  return -1
end
local index, bit_value = place_in_mask(slot)

local fresh, values, known = {}, {}, {}
for start = 1, #names, NAME_BYTES do
  local name = sub(names, start, start + NAME_BYTES - 1)
  if not known[name] then
    known[name] = true
    local key, field = place_of(name)
    local value = call('HGET', key, field)
    if not value or not has_bit(value, index, bit_value) then
      fresh[#fresh + 1] = name
      values[#fresh] = value
    end
  end
end
if facts.count + #fresh > facts.max then
  return -2
end
if #fresh == 0 then
  return 0
end

local tick = present_tick(max_blocks)
local num_new = 0
for i = 1, #fresh do
  local key, field = place_of(fresh[i])
  if not values[i] then
    num_new = num_new + 1
  end
  call('HSET', key, field, with_bit(values[i], index, bit_value, tick))
  toggle(facts.xor, fresh[i])
end
facts.count = facts.count + #fresh
save_slot(slot, facts)
local num_blocks = call('HINCRBY', meta_key, 'blocks', num_new)
if max_blocks == 0 then
  return 0
end
call('HINCRBY', meta_key, 'used', #fresh)
if num_blocks <= max_blocks then
  return 0
end
-- Where the bound was lowered there may be far more: those are for `sweep`, in slices.
return evict(math.min(num_blocks - max_blocks, 2 * #fresh), tick)
