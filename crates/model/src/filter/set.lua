-- Adds items to one shard of the filter, all or none.
-- KEYS[1]: the shard. ARGV[1]: the seal, 8 bytes. Then pairs: a word's first byte, its mask (8 bytes).
-- 1: they are in. 0: this is not the sealed shard that was meant, and nothing was set.
local key = KEYS[1]
if redis.call('GETRANGE', key, 8, 15) ~= ARGV[1] then return 0 end
for i = 2, #ARGV, 2 do
  local at, high, low = ARGV[i], struct.unpack('>I4I4', ARGV[i + 1])
  local word, a, b = redis.call('GETRANGE', key, at, at + 7), 0, 0
  if #word == 8 then a, b = struct.unpack('>I4I4', word) end
  local x, y = bit.bor(a, high), bit.bor(b, low)
  -- What is there already, as it is when the upkeep comes by, costs no write and no replication.
  if x ~= bit.tobit(a) or y ~= bit.tobit(b) then
    redis.call('SETRANGE', key, at, struct.pack('>i4i4', x, y))
  end
end
return 1
