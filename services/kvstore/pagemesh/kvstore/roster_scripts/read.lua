-- ARGV: the versions of membership and loads that the caller has read. Gives what tells whether this server has
-- lost what it held, and the present versions; all workers with
-- their owners and all workers with their WorkerInfo if membership is another, else nothing twice; and workers
-- with their WorkerLoad, in turn, that were told since.
local joins = call('GET', prefix .. 'joins') or '0'
local told = call('GET', prefix .. 'told') or '0'
local owners, infos, loads = {}, {}, {}
if joins ~= ARGV[1] then
  owners = call('HGETALL', prefix .. 'owners')
  infos = call('HGETALL', prefix .. 'infos')
end
if told ~= ARGV[2] then
  for _, worker in ipairs(call('ZRANGEBYSCORE', prefix .. 'load_order', '(' .. ARGV[2], '+inf')) do
    loads[#loads + 1] = worker
    loads[#loads + 1] = call('HGET', prefix .. 'loads', worker)
  end
end
return { call('GET', prefix .. 'joins_began') or '0', joins, told, owners, infos, loads }
