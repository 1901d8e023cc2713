-- Makes another batch the newest one of a store of Python batches, and forgets later batches.
-- KEYS  1 {T rs:<gen>}:q
-- ARGV  1 operator and store, as <operator>:<store name>   2 its newest batch, as read from `batch:…`   3 batch id that becomes the newest,
--         at least the one before the first   4 word in place of the run
-- Reply OK · CHANGED · MOVED gen (the store has another checkpoint by now) · PURGED
-- Keeps: the newest batch, its begin and the planned batches change together, and only if unchanged since they were read;
--        plans, runs and epochs stay, so the next run fences every earlier one.
local query, place = KEYS[1], ARGV[1]
if redis.call('HEXISTS', query, 'purged') == 1 then return {'PURGED'} end
local moved = redis.call('HGET', query, 'moved:' .. place)
if moved then return {'MOVED', moved} end

local first, partitions, layout = string.match(ARGV[2], '^%d+ (%d+) (%d+) %S+ (.*)$')
local wanted = table.concat({ARGV[3], first, partitions, ARGV[4], layout}, ' ')
local found = redis.call('HGET', query, 'batch:' .. place)
if found == wanted then return {'OK'} end
if found ~= ARGV[2] then return {'CHANGED'} end

local kept = {}
for mark in string.gmatch(redis.call('HGET', query, 'planned:' .. place) or '', '%S+') do
  local of_batch = tonumber(string.match(mark, '^%d+'))
  if of_batch and of_batch <= tonumber(ARGV[3]) then kept[#kept + 1] = mark end
end
if #kept > 0 then
  redis.call('HSET', query, 'planned:' .. place, table.concat(kept, ' '))
else
  redis.call('HDEL', query, 'planned:' .. place)
end
redis.call('HDEL', query, 'begun:' .. place)
redis.call('HSET', query, 'batch:' .. place, wanted)
return {'OK'}
