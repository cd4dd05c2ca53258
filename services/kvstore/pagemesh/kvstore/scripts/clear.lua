-- ARGV: slot, token, a new token. Gives the slot that the worker has from now on, -1 if this one is no longer
-- the caller's, -2 if none is left.
local slot, token, new_token = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local facts = call('HMGET', slot_key(slot), 'token', 'worker', 'replica', 'max', 'count')
if facts[1] ~= token then
  return -1
end
if facts[5] == '0' then
  call('HSET', slot_key(slot), 'token', new_token)
  return slot
end
retire(slot, new_token)
return give(facts[2], new_token, facts[3], facts[4]) or -2
