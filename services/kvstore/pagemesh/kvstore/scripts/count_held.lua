-- ARGV: slot, token, names. How many of them the slot has; -1 if it is no longer that token's.
local slot, token, names = tonumber(ARGV[1]), ARGV[2], ARGV[3]
if not owned_slot(slot, token) then
  return -1
end
local index, bit_value = place_in_mask(slot)
local num_held = 0
for start = 1, #names, NAME_BYTES do
  local key, field = place_of(sub(names, start, start + NAME_BYTES - 1))
  local value = call('HGET', key, field)
  if value and has_bit(value, index, bit_value) then
    num_held = num_held + 1
  end
end
return num_held
