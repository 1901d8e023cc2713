-- Describe a store of a query; its number of partitions only grows, whoever comes last.
-- KEYS  1 {T rs:<gen>}:q
-- ARGV  1 field `op:<operator>:<store name>`  2 number of partitions  3 the rest of the JSON object, behind its `{`
-- Reply OK partitions
-- Keeps: the number that stands in the field is the largest that was ever given.
local known = redis.call('HGET', KEYS[1], ARGV[1])
local partitions = known and string.match(known, '"partitions":%s*(%d+)')
if not partitions or tonumber(partitions) < tonumber(ARGV[2]) then
  partitions = ARGV[2]
  redis.call('HSET', KEYS[1], ARGV[1], '{"partitions": ' .. partitions .. ', ' .. ARGV[3])
end
return {'OK', partitions}
