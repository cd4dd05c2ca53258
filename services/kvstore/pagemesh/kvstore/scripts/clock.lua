-- When blocks were last of use: in ticks, of which there are 16 while as many blocks as the index may hold
-- are stored or found by lookups. A block has its tick modulo 256. Only where the index is bounded.
local function present_tick(max_blocks)
  if max_blocks == 0 then
    return 0
  end
  local used = tonumber(call('HGET', meta_key, 'used') or 0)
  return floor(used * 16 / max_blocks) % 256
end
