-- A write has ended, and its outcome is known.
-- KEYS[1]: the list. ARGV[1]: the write, 8 bytes.
local key = KEYS[1]
if redis.call('GETRANGE', key, 0, 0) ~= '!' then
  -- The mark was evicted, and what was filled since may be from before the write.
  return redis.call('DEL', key)
end
local marks, left = redis.call('GET', key), {}
for at = 2, #marks, 8 do
  local mark = string.sub(marks, at, at + 7)
  if mark ~= ARGV[1] then left[#left + 1] = mark end
end
if #left == 0 then return redis.call('DEL', key) end
redis.call('SET', key, '!' .. table.concat(left), 'KEEPTTL')
return 1
