-- Merges fields into a node's string, per field the one with the higher stamp.
-- KEYS[1]: the string. ARGV: its token as it was seen, when the fields were read ('': no word of
-- that), the fields, how many milliseconds the string lives from now on (0: as long as it does).
-- Answers 1, or 0 where the string is gone or is another than was seen.
local held = redis.call('GET', KEYS[1])
if not held or held:sub(1, 8) ~= ARGV[1] then return 0 end

-- Not by `>`: that goes by the locale of the server.
local function newer(stamp, than)
  for at = 1, 8 do
    local one, other = stamp:byte(at), than:byte(at)
    if one ~= other then return one > other end
  end
  return false
end

local names, fields = {}, {}
for _, packed in ipairs({held:sub(17), ARGV[3]}) do
  for at = 1, #packed - 18, 19 do
    local name, field = packed:sub(at, at + 2), packed:sub(at + 3, at + 18)
    if not fields[name] then
      names[#names + 1], fields[name] = name, field
    elseif newer(field, fields[name]) then
      fields[name] = field
    end
  end
end

local read = ARGV[2] == '' and held:sub(9, 16) or ARGV[2]
local out = {ARGV[1], read}
for _, name in ipairs(names) do
  out[#out + 1] = name
  out[#out + 1] = fields[name]
end
if ARGV[4] == '0' then
  redis.call('SET', KEYS[1], table.concat(out), 'KEEPTTL')
else
  redis.call('SET', KEYS[1], table.concat(out), 'PX', ARGV[4])
end
return 1
