-- ARGV: slot, token, names. Gives -1 if the slot is not the caller's, else 0.
local slot, token, names = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local facts = owned_slot(slot, token)
if not facts then
  return -1
end
local index, bit_value = place_in_mask(slot)
local gone = { [index] = bit_value }
local num_lost, known = 0, {}
for start = 1, #names, NAME_BYTES do
  local name = sub(names, start, start + NAME_BYTES - 1)
  local key, field = place_of(name)
  local value = not known[name] and call('HGET', key, field)
  if value and has_bit(value, index, bit_value) then
    local rest = without_bits(value, gone)
    if rest then
      call('HSET', key, field, rest)
    else
      call('HDEL', key, field)
      num_lost = num_lost + 1
    end
    toggle(facts.xor, name)
    facts.count = facts.count - 1
  elseif not known[name] and facts.evicted > 0 then
    -- The worker had it, and the index had given it up.
    toggle(facts.xor, name)
    facts.count = facts.count - 1
    facts.evicted = facts.evicted - 1
  end
  known[name] = true
end
save_slot(slot, facts)
call('HINCRBY', meta_key, 'blocks', -num_lost)
return 0
