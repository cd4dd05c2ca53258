-- Slots given to workers and taken from them. A slot that has bits in masks is retired, to be swept before it
-- is given to anybody again; one that has none is free at once.
local MOST_SLOTS = 32768

local function retire(slot)
  local key = slot_key(slot)
  local facts = call('HMGET', key, 'worker', 'count', 'evicted')
  call('DEL', key)
  call('HDEL', prefix .. 'live', slot)
  if call('HGET', prefix .. 'workers', facts[1]) == tostring(slot) then
    call('HDEL', prefix .. 'workers', facts[1])
  end
  call('SADD', prefix .. (facts[2] == facts[3] and 'free' or 'retired'), slot)
end

local function slot_of(worker)
  return tonumber(call('HGET', prefix .. 'workers', worker))
end

-- A slot for a worker; nil if there is none.
local function give(worker, token, replica, max)
  local slot = tonumber(call('SPOP', prefix .. 'free'))
  if not slot then
    slot = tonumber(call('HGET', meta_key, 'slots') or 0)
    if slot == MOST_SLOTS then
      return nil
    end
    call('HSET', meta_key, 'slots', slot + 1)
  end
  call('HSET', slot_key(slot), 'worker', worker, 'token', token, 'replica', replica, 'max', max,
    'count', 0, 'evicted', 0, 'xor', string.rep('\0', NAME_BYTES))
  call('HSET', prefix .. 'live', slot, worker)
  call('HSET', prefix .. 'workers', worker, slot)
  call('SADD', prefix .. 'replicas', replica)
  call('SET', prefix .. 'version', token)
  return slot
end
