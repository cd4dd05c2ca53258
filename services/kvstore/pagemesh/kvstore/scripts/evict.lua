-- Room for new blocks: a hand goes round the buckets and gives up those that were of no use for longest
-- among the blocks that it finds, an eighth of them. What the workers said they hold stays as it is.
local SAMPLE = 64
local MOST_EVICTED = 256
local MOST_STEPS = 4096

-- The hand is a cursor of the server's own, which passes over buckets that are empty: where the index may hold
-- few blocks, nearly all are.
local function sample_from(hand, num_keys)
  local found = {}
  for step = 1, MOST_STEPS do
    local answer = call('SCAN', hand, 'MATCH', prefix .. 'b:*', 'COUNT', num_keys)
    hand = answer[1]
    for _, key in ipairs(answer[2]) do
      local entries = call('HGETALL', key)
      for i = 1, #entries, 2 do
        found[#found + 1] = { key = key, field = entries[i], value = entries[i + 1] }
      end
    end
    -- Nobody is to be met twice.
    if #found >= SAMPLE or (hand == '0' and #found > 0) then
      break
    end
  end
  return found, hand
end

local function evict(num_wanted, tick)
  local per_bucket = tonumber(call('HGET', meta_key, 'blocks') or 0) * divisor / 16777216
  local num_keys = math.ceil(SAMPLE / math.max(1, per_bucket))
  local hand = call('HGET', meta_key, 'hand') or '0'
  local num_evicted, lost = 0, {}
  while num_evicted < num_wanted do
    local found
    found, hand = sample_from(hand, num_keys)
    if #found == 0 then
      break
    end
    for _, block in ipairs(found) do
      block.age = (tick - byte(block.value, 1)) % 256
    end
    table.sort(found, function(one, other) return one.age > other.age end)
    for i = 1, math.min(num_wanted - num_evicted, math.ceil(#found / 8)) do
      if call('HDEL', found[i].key, found[i].field) == 1 then
        num_evicted = num_evicted + 1
        for _, slot in ipairs(slots_in(found[i].value)) do
          lost[slot] = (lost[slot] or 0) + 1
        end
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
