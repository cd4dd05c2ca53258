-- In front of every script. `prefix` is that of all keys.
local call = redis.call

local function now_ms()
  local time = call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Another number at each change. Begins at the time, so that a server that lost everything gives none again.
local function next_version(name)
  local version = call('INCR', prefix .. name)
  if version == 1 then
    local time = call('TIME')
    version = time[1] * 1000000 + time[2]
    call('SET', prefix .. name, string.format('%.0f', version))
    call('SET', prefix .. name .. '_began', string.format('%.0f', version))
  end
  return version
end

-- Wakes the other replicas, which then read what is new: the news themselves say nothing.
local function announce(replica)
  call('XADD', prefix .. 'news', 'MAXLEN', 1, '*', 'by', replica)
end

local function forget(worker)
  for _, name in ipairs({ 'owners', 'epochs', 'infos', 'kinds', 'loads' }) do
    call('HDEL', prefix .. name, worker)
  end
  call('ZREM', prefix .. 'load_order', worker)
end
