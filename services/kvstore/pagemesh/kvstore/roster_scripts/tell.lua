-- ARGV: replica, then worker and WorkerLoad in turn. Workers of other replicas are passed over.
local replica = ARGV[1]
for i = 2, #ARGV, 2 do
  if call('HGET', prefix .. 'owners', ARGV[i]) == replica then
    call('HSET', prefix .. 'loads', ARGV[i], ARGV[i + 1])
    call('ZADD', prefix .. 'load_order', string.format('%.0f', next_version('told')), ARGV[i])
  end
end
announce(replica)
return 0
