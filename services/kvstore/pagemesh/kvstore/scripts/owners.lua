-- Slots, and who may write them.

-- Facts of a slot, as long as it is the one's who has this token.
local function owned_slot(slot, token)
  local facts = call('HMGET', slot_key(slot), 'token', 'max', 'count', 'evicted', 'xor')
  if facts[1] ~= token then
    return nil
  end
  return {
    max = tonumber(facts[2]),
    count = tonumber(facts[3]),
    evicted = tonumber(facts[4]),
    xor = { struct.unpack('>i4i4i4i4', facts[5]) },
  }
end

-- A name comes to the others or leaves them.
local function toggle(xor, name)
  local a, b, c, d = struct.unpack('>i4i4i4i4', name)
  xor[1], xor[2], xor[3], xor[4] = bit.bxor(xor[1], a), bit.bxor(xor[2], b), bit.bxor(xor[3], c), bit.bxor(xor[4], d)
end

local function save_slot(slot, facts)
  local xor = facts.xor
  call('HSET', slot_key(slot), 'count', facts.count, 'evicted', facts.evicted,
    'xor', struct.pack('>i4i4i4i4', xor[1], xor[2], xor[3], xor[4]))
end
