-- Slots given to workers and taken from them. A slot that has bits in masks is retired, to be swept before it
-- is given to anybody again; one that has none is free at once.
local MOST_SLOTS = 32768

-- A new version goes with it: whoever has read the table of workers must not credit the slot to anybody.
local function retire(slot, version)
  local key = slot_key(slot)
  local facts = call('HMGET', key, 'worker', 'count', 'evicted')
  -- A server that is short of memory, or an operator, may have deleted the slot itself.
  local worker = facts[1] or call('HGET', prefix .. 'live', slot)
  call('DEL', key)
  call('HDEL', prefix .. 'live', slot)
  if worker and call('HGET', prefix .. 'workers', worker) == tostring(slot) then
    call('HDEL', prefix .. 'workers', worker)
  end
  local is_empty = facts[2] and facts[2] == facts[3]
  call('SADD', prefix .. (is_empty and 'free' or 'retired'), slot)
  call('SET', prefix .. 'version', version)
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
