-- Fills a list, if the lease to do so still stands.
-- KEYS[1]: the list. ARGV[1]: the lease, 9 bytes. ARGV[2]: the list. ARGV[3]: its life, in ms.
if redis.call('GETRANGE', KEYS[1], 0, 8) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
