-- Takes the right to fill a list that is not there, or that nobody believes any more.
-- KEYS[1]: the list. ARGV[1]: the seal of lists that are believed, 8 bytes. ARGV[2]: the lease, 9
-- bytes. ARGV[3]: how long it is good for, in ms. 1: it is taken.
local head = redis.call('GETRANGE', KEYS[1], 0, 8)
local old = string.sub(head, 1, 1) == 'V' and string.sub(head, 2) ~= ARGV[1]
if head ~= '' and not old then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
