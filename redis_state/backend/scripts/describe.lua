-- Describes a store of a query; its number of partitions only grows, whichever caller comes last.
-- KEYS  1 {T rs:<gen>}:q
-- ARGV  1 field `op:<operator>:<store name>`  2 number of partitions  3 the rest of the JSON object, after its `{`
--       4 keep ms (0 = for ever); absent or '' leaves the expiry as it is  5… pairs (field, value) to set
-- Reply OK partitions · PURGED
-- Keeps: the field has the largest number ever given; a purged query is not renewed.
local query = KEYS[1]
if redis.call('HEXISTS', query, 'purged') == 1 then return {'PURGED'} end
local known = redis.call('HGET', query, ARGV[1])
local partitions = known and string.match(known, '"partitions":%s*(%d+)')
if not partitions or tonumber(partitions) < tonumber(ARGV[2]) then
  partitions = ARGV[2]
  redis.call('HSET', query, ARGV[1], '{"partitions": ' .. partitions .. ', ' .. ARGV[3])
end
for i = 5, #ARGV, 2 do redis.call('HSET', query, ARGV[i], ARGV[i + 1]) end
local keep_ms = ARGV[4] or ''
if keep_ms == '0' then
  redis.call('PERSIST', query)
elseif keep_ms ~= '' then
  redis.call('PEXPIRE', query, keep_ms)
end
return {'OK', partitions}
