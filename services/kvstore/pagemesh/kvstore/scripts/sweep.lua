-- ARGV: replica, its lease in ms, how long it may sweep alone in ms, how many blocks to look at, a new version of
-- the table of workers, the most blocks of the index or 0. Takes the bits of retired slots out of the masks in some
-- more buckets, or gives up some blocks of an index that holds more than it may. Gives whether there is more to do
-- for this replica, and how many blocks were given up.
local replica, lease_ms, sweeping_ms, budget = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local version, max_blocks = ARGV[5], tonumber(ARGV[6])
call('SET', prefix .. 'replica:' .. replica, '', 'PX', lease_ms)
local sweeper = call('GET', prefix .. 'sweeper')
if sweeper and sweeper ~= replica then
  return { 0, 0 }
end
call('SET', prefix .. 'sweeper', replica, 'PX', sweeping_ms)

-- Slots of replicas that are gone: their workers publish to others by now, or are gone as well.
for _, other in ipairs(call('SMEMBERS', prefix .. 'replicas')) do
  if call('EXISTS', prefix .. 'replica:' .. other) == 0 then
    local live = call('HGETALL', prefix .. 'live')
    for i = 1, #live, 2 do
      local owner = call('HGET', slot_key(live[i]), 'replica')
      if not owner or owner == other then
        retire(tonumber(live[i]), version)
      end
    end
    call('SREM', prefix .. 'replicas', other)
  end
end

local sweeping_key, retired_key = prefix .. 'sweeping', prefix .. 'retired'
if call('EXISTS', sweeping_key) == 0 then
  if call('EXISTS', retired_key) == 0 then
    local surplus = max_blocks > 0 and tonumber(call('HGET', meta_key, 'blocks') or 0) - max_blocks or 0
    if surplus <= 0 then
      return { 0, 0 }
    end
    local num_evicted = evict(math.min(surplus, budget, MOST_EVICTED), present_tick(max_blocks))
    return { num_evicted > 0 and num_evicted < surplus and 1 or 0, num_evicted }
  end
  call('RENAME', retired_key, sweeping_key)
  call('HSET', meta_key, 'swept', 0)
end
local gone, slots = {}, call('SMEMBERS', sweeping_key)
for _, slot in ipairs(slots) do
  local index, bit_value = place_in_mask(tonumber(slot))
  gone[index] = (gone[index] or 0) + bit_value
end

local num_buckets = floor(16777216 / divisor)
local bucket = tonumber(call('HGET', meta_key, 'swept') or 0)
local num_lost = 0
while bucket < num_buckets and budget > 0 do
  local key = bucket_key(bucket)
  local entries = call('HGETALL', key)
  for i = 1, #entries, 2 do
    local rest, changed = without_bits(entries[i + 1], gone)
    if not rest then
      call('HDEL', key, entries[i])
      num_lost = num_lost + 1
    elseif changed then
      call('HSET', key, entries[i], rest)
    end
  end
  bucket, budget = bucket + 1, budget - 1 - #entries / 2
end
call('HINCRBY', meta_key, 'blocks', -num_lost)
if bucket < num_buckets then
  call('HSET', meta_key, 'swept', bucket)
  return { 1, 0 }
end
for _, slot in ipairs(slots) do
  call('SADD', prefix .. 'free', slot)
end
call('DEL', sweeping_key)
-- Also for the blocks that may be too many.
return { (max_blocks > 0 or call('EXISTS', retired_key) == 1) and 1 or 0, 0 }
