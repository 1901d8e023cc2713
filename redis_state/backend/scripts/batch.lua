-- Checks the number of a Python job's batch, and begins it: from then on only its run evaluates the batch.
-- KEYS  1 {T rs:<gen>}:q
-- ARGV  1 operator and store, as <operator>:<store name>   2 'check' or 'begin'   3 run id   4 epoch
--       5 batch id   6 first batch id   7 partitions, 0 for the known number   8 layout (key columns and codec)
--       9 id of Spark's query whose foreachBatch begins the batch, '' if none or unknown
-- Reply OK partitions · FENCED newest-epoch · PARTITIONS n · LAYOUT text · FIRST id · GAP newest · OLD newest · MOVED gen (the store has
--       another checkpoint by now) · PURGED
-- Keeps: batch ids rise by one, or the newest is repeated; partitions and layout never change; no batch begins in a purged query.
local query, place = KEYS[1], 'batch:' .. ARGV[1]
if redis.call('HEXISTS', query, 'purged') == 1 then return {'PURGED'} end
local moved = redis.call('HGET', query, 'moved:' .. ARGV[1])
if moved then return {'MOVED', moved} end
local batch, first, partitions = tonumber(ARGV[5]), ARGV[6], ARGV[7]
local known = redis.call('HGET', query, place)
if known then
  local newest, begun, count, layout = string.match(known, '^(%d+) (%d+) (%d+) %S+ (.*)$')
  if partitions ~= '0' and count ~= partitions then return {'PARTITIONS', count} end
  if layout ~= ARGV[8] then return {'LAYOUT', layout} end
  if begun ~= first then return {'FIRST', begun} end
  if batch > tonumber(newest) + 1 then return {'GAP', newest} end
  if batch < tonumber(newest) then return {'OLD', newest} end
  partitions = count
elseif batch ~= tonumber(first) then
  return {'GAP', '-'}
end
if ARGV[2] == 'begin' then
  local newest = redis.call('HGET', query, 'epoch') or '0'
  if newest ~= ARGV[4] then return {'FENCED', newest} end
  local text = table.concat({ARGV[5], first, partitions, ARGV[3], ARGV[8]}, ' ')
  redis.call('HSET', query, place, text)
  if (ARGV[9] or '') ~= '' then redis.call('HSET', query, 'query:' .. ARGV[1], ARGV[9]) end
end
return {'OK', partitions}
