-- Room for new blocks: a hand goes round the buckets and gives up those that were of no use for longest
-- among the blocks that it finds, an eighth of them. What the workers said they hold stays as it is.
local SAMPLE = 64
local MOST_BUCKETS = 4096

local function sample_from(hand, num_buckets)
  local found = {}
  for visited = 1, math.min(MOST_BUCKETS, num_buckets) do
    local key = bucket_key(hand)
    local entries = call('HGETALL', key)
    for i = 1, #entries, 2 do
      found[#found + 1] = { key = key, field = entries[i], value = entries[i + 1] }
    end
    hand = (hand + 1) % num_buckets
    if #found >= SAMPLE then
      break
    end
  end
  return found, hand
end

local function evict(num_wanted, tick)
  local num_buckets = floor(16777216 / divisor)
  local hand = tonumber(call('HGET', meta_key, 'hand') or 0)
  local num_evicted, lost = 0, {}
  while num_evicted < num_wanted do
    local found
    found, hand = sample_from(hand, num_buckets)
    if #found == 0 then
      break
    end
    for _, block in ipairs(found) do
      block.age = (tick - byte(block.value, 1)) % 256
    end
    table.sort(found, function(one, other) return one.age > other.age end)
    for i = 1, math.min(num_wanted - num_evicted, math.ceil(#found / 8)) do
      call('HDEL', found[i].key, found[i].field)
      num_evicted = num_evicted + 1
      for _, slot in ipairs(slots_in(found[i].value)) do
        lost[slot] = (lost[slot] or 0) + 1
      end
    end
  end
  for slot, count in pairs(lost) do
    local key = slot_key(slot)
    if call('EXISTS', key) == 1 then
      call('HINCRBY', key, 'evicted', count)
    end
  end
  call('HSET', meta_key, 'hand', hand)
  call('HINCRBY', meta_key, 'blocks', -num_evicted)
  return num_evicted
end
