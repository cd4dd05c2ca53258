-- ARGV: worker. Its slot, the slot's token, the most blocks, its blocks as it said, how many were given up, and
-- the exclusive or of their names; nothing if the worker has no slot.
local slot = slot_of(ARGV[1])
if not slot then
  return {}
end
return { slot, unpack(call('HMGET', slot_key(slot), 'token', 'max', 'count', 'evicted', 'xor')) }
