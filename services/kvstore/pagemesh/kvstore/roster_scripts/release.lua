-- ARGV: replica, worker, epoch in 20 digits. Forgets the incarnation if it is the replica's; gives owner and
-- WorkerInfo if the worker is another replica's, else nothing.
local replica, worker, epoch = ARGV[1], ARGV[2], ARGV[3]
local owner = call('HGET', prefix .. 'owners', worker)
if not owner then
  return {}
end
if owner ~= replica then
  return { owner, call('HGET', prefix .. 'infos', worker) }
end
if call('HGET', prefix .. 'epochs', worker) == epoch then
  forget(worker)
  next_version('joins')
  announce(replica)
end
return {}
