-- ARGV: version of the table of workers that the caller knows, names, the most blocks of the index or 0.
-- Gives the version, the table (slots and workers in turn) if that is another, and the values of the leading
-- blocks that anybody holds, each behind its length in two bytes.
local known_version, names, max_blocks = ARGV[1], ARGV[2], tonumber(ARGV[3])
local values, packed, lengths = {}, {}, {}
for start = 1, #names, NAME_BYTES do
  local key, field = place_of(sub(names, start, start + NAME_BYTES - 1))
  local value = call('HGET', key, field)
  if not value then
    break
  end
  local size = #value
  local length = lengths[size]
  if not length then
    length = struct.pack('>I2', size)
    lengths[size] = length
  end
  local depth = #values + 1
  values[depth], packed[2 * depth - 1], packed[2 * depth] = value, length, value
end
if max_blocks > 0 and #values > 0 then
  local tick = present_tick(max_blocks)
  -- Whoever was of use at this depth was of use at every lesser one.
  if byte(values[#values], 1) ~= tick then
    for i = 1, #values do
      local key, field = place_of(sub(names, (i - 1) * NAME_BYTES + 1, i * NAME_BYTES))
      call('HSET', key, field, string.char(tick) .. sub(values[i], 2))
    end
    call('HINCRBY', meta_key, 'used', #values)
  end
end
local version = call('GET', prefix .. 'version') or ''
local workers = {}
if version ~= known_version then
  workers = call('HGETALL', prefix .. 'live')
end
return { version, workers, table.concat(packed) }
