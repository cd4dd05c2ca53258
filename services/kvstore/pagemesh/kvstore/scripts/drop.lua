-- ARGV: worker, replica, number of a token, a new version of the table of workers. Takes the slot that the worker
-- has by this or an earlier token of the replica; nothing if it has a later one, or another replica's.
local worker, replica, number, version = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local slot = slot_of(worker)
local token = slot and call('HGET', slot_key(slot), 'token')
if token then
  local owner, present = string.match(token, '^(.*)%.(%d+)$')
  if owner == replica and tonumber(present) <= number then
    retire(slot, version)
  end
end
return 0
