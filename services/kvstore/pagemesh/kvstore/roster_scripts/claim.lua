-- ARGV: replica, ms that it counts as alive, worker, epoch in 20 digits, WorkerInfo, model name, model fingerprint,
-- KV layout, whether to take the same incarnation from a replica that is alive: 1 or 0.
-- Gives 'ok', or why not and what is in the way: 'stale' an epoch, 'duplicate' or 'mismatch' a WorkerInfo,
-- 'elsewhere' a replica.
local replica, limit_ms, worker, epoch, info = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
local name, fingerprint, layout, takes = ARGV[6], ARGV[7], ARGV[8], ARGV[9] == '1'
local owner = call('HGET', prefix .. 'owners', worker)
local known_epoch = call('HGET', prefix .. 'epochs', worker)
if owner and epoch < known_epoch then
  return { 'stale', known_epoch }
end
local is_same = owner and epoch == known_epoch
if is_same then
  if call('HGET', prefix .. 'infos', worker) ~= info then
    return { 'duplicate', call('HGET', prefix .. 'infos', worker) }
  end
  if owner == replica then
    return { 'ok' }
  end
  local alive_until = call('ZSCORE', prefix .. 'replicas', owner)
  if not takes and alive_until and tonumber(alive_until) >= now_ms() then
    return { 'elsewhere', owner }
  end
end
local kind = name .. '\0' .. fingerprint .. '\0' .. layout
local kinds = call('HGETALL', prefix .. 'kinds')
for i = 1, #kinds, 2 do
  if kinds[i] ~= worker and kinds[i + 1] ~= kind then
    local other_name, other_fingerprint, other_layout = string.match(kinds[i + 1], '^(.-)%z(.-)%z(.*)$')
    local is_other_model = other_name == name and other_fingerprint ~= fingerprint
    local is_other_layout = other_fingerprint == fingerprint and other_layout ~= layout
    if is_other_model or is_other_layout then
      return { 'mismatch', call('HGET', prefix .. 'infos', kinds[i]) }
    end
  end
end
if not is_same then
  forget(worker)
end
call('HSET', prefix .. 'owners', worker, replica)
call('HSET', prefix .. 'epochs', worker, epoch)
call('HSET', prefix .. 'infos', worker, info)
call('HSET', prefix .. 'kinds', worker, kind)
call('ZADD', prefix .. 'replicas', 'NX', now_ms() + limit_ms, replica)
next_version('joins')
announce(replica)
return { 'ok' }
