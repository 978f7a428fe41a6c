-- An instance tells what it reads most and hears what the others do.
-- KEYS[1] is a hash of all instances; ARGV are the own name, the own word, and how many
-- milliseconds a word counts. Whoever says nothing for so long is forgotten.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now + ARGV[3]) .. ':' .. ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
local all = redis.call('HGETALL', KEYS[1])
local others = {}
for at = 1, #all, 2 do
  local colon = string.find(all[at + 1], ':', 1, true)
  local ends = colon and tonumber(string.sub(all[at + 1], 1, colon - 1))
  if not ends or ends <= now then
    redis.call('HDEL', KEYS[1], all[at])
  elseif all[at] ~= ARGV[1] then
    others[#others + 1] = string.sub(all[at + 1], colon + 1)
  end
end
return others
