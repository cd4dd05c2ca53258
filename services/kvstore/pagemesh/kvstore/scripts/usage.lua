-- Blocks in the index, blocks counted for each worker, bytes of some buckets and blocks in these.
local num_held = 0
for _, slot in ipairs(call('HKEYS', prefix .. 'live')) do
  local facts = call('HMGET', slot_key(slot), 'count', 'evicted')
  num_held = num_held + (facts[1] or 0) - (facts[2] or 0)
end
local num_bytes, num_sampled = 0, 0
local keys = call('SCAN', 0, 'MATCH', prefix .. 'b:*', 'COUNT', 64)[2]
for _, key in ipairs(keys) do
  num_bytes = num_bytes + call('MEMORY', 'USAGE', key, 'SAMPLES', 0)
  num_sampled = num_sampled + call('HLEN', key)
end
return { tonumber(call('HGET', meta_key, 'blocks') or 0), num_held, num_bytes, num_sampled }
