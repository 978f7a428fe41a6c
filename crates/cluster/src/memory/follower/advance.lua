-- Moves the follower's positions on, if they are the ones that it knows.
-- KEYS[1]: the positions. ARGV: what they were ('': there were none), what they become.
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
