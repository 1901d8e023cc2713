-- Marks a store of Python batches as moved to another checkpoint: from then on no batch begins here.
-- KEYS  1 {T rs:<gen>}:q
-- ARGV  1 operator and store, as <operator>:<store name>   2 epoch of the run that moves it   3 its newest batch, as read from `batch:…`
--       4 gen of the checkpoint that has the store from now on
-- Reply OK gen (the first that was given) · FENCED newest-epoch · CHANGED · PURGED
-- Keeps: a store is moved once, and only unchanged since it was read: neither a run nor a batch has begun since.
local query, place = KEYS[1], ARGV[1]
if redis.call('HEXISTS', query, 'purged') == 1 then return {'PURGED'} end
local moved = redis.call('HGET', query, 'moved:' .. place)
if moved then return {'OK', moved} end
local newest = redis.call('HGET', query, 'epoch') or '0'
if newest ~= ARGV[2] then return {'FENCED', newest} end
if redis.call('HGET', query, 'batch:' .. place) ~= ARGV[3] then return {'CHANGED'} end
redis.call('HSET', query, 'moved:' .. place, ARGV[4])
redis.call('HDEL', query, 'moving:' .. place)
return {'OK', ARGV[4]}
