-- A write is about to change this list: what stands is forgotten, and nothing is filled until every
-- such write has ended.
-- KEYS[1]: the list. ARGV[1]: the write, 8 bytes. ARGV[2]: how long it may take, in ms.
if redis.call('GETRANGE', KEYS[1], 0, 0) == '!' then
  redis.call('APPEND', KEYS[1], ARGV[1])
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
else
  redis.call('SET', KEYS[1], '!' .. ARGV[1], 'PX', ARGV[2])
end
return 1
