-- Fills a string, if what gives the right to do so still stands at its beginning.
-- KEYS[1]: the string. ARGV[1]: the lease or the token that was seen. ARGV[2]: what it becomes.
-- ARGV[3]: its life, in ms. 1: it is filled.
if redis.call('GETRANGE', KEYS[1], 0, #ARGV[1] - 1) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
