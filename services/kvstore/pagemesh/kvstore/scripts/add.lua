-- ARGV: worker, its new token, replica, most blocks, the replica's lease in ms, how many blocks the worker holds and
-- the exclusive or of their names. The slot that the worker has stays its own with these blocks and no others, under
-- the new token: whoever had it writes nothing any more. Gives the slot, -2 if none is left, and whether that is it.
local worker, token, replica, max, lease_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local count, xor = ARGV[6], ARGV[7]
-- As long as the lease runs, nobody takes the slots of this replica.
call('SET', prefix .. 'replica:' .. replica, '', 'PX', lease_ms)
local old = slot_of(worker)
if old then
  local facts = call('HMGET', slot_key(old), 'count', 'xor')
  if facts[1] == count and facts[2] == xor then
    call('HSET', slot_key(old), 'token', token, 'replica', replica, 'max', max)
    call('SADD', prefix .. 'replicas', replica)
    return { old, 1 }
  end
  retire(old, token)
end
return { give(worker, token, replica, max) or -2, 0 }
