-- ARGV: worker, its new token, replica, most blocks, the replica's lease in ms. Gives the slot, -2 if none is left.
local worker, token, replica, max, lease_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local old = slot_of(worker)
if old then
  retire(old, token)
end
-- As long as the lease runs, nobody takes the slots of this replica.
call('SET', prefix .. 'replica:' .. replica, '', 'PX', lease_ms)
return give(worker, token, replica, max) or -2
