-- ARGV: replica, ms that it counts as alive from now on, ms without any beat after which nobody is to blame.
-- Workers of replicas that are gone are forgotten.
local replica, limit_ms, pause_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local now = now_ms()
local last = tonumber(call('GET', prefix .. 'beat') or now)
call('SET', prefix .. 'beat', now)
call('ZADD', prefix .. 'replicas', now + limit_ms, replica)
local gone = call('ZRANGEBYSCORE', prefix .. 'replicas', '-inf', '(' .. now)
if now - last > pause_ms then
  -- Nobody could beat: it was this server that was away.
  for _, other in ipairs(gone) do
    call('ZADD', prefix .. 'replicas', now + limit_ms, other)
  end
  return 0
end
for _, other in ipairs(gone) do
  call('ZREM', prefix .. 'replicas', other)
  local owners = call('HGETALL', prefix .. 'owners')
  for i = 1, #owners, 2 do
    if owners[i + 1] == other then
      forget(owners[i])
    end
  end
end
if #gone > 0 then
  next_version('joins')
  -- The beating replica is to read it as well.
  announce('')
end
return 0
