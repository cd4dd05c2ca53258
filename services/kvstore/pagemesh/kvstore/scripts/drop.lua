-- ARGV: worker, token, a new version of the table of workers. Does nothing if the worker has another token by now.
local worker, token, version = ARGV[1], ARGV[2], ARGV[3]
local slot = slot_of(worker)
if slot and call('HGET', slot_key(slot), 'token') == token then
  retire(slot)
  call('SET', prefix .. 'version', version)
end
return 0
