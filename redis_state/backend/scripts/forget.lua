-- Removes the name of a kept version, unless another call has given the name to another version meanwhile.
-- KEYS  1 {T rs:<gen>}:q
-- ARGV  1 field of the name   2 owner of its pins
-- Reply OK · NONE (the field is absent or names another owner) · PURGED
-- Keeps: a name that was dropped and given anew stays, however late this call arrives.
if redis.call('HEXISTS', KEYS[1], 'purged') == 1 then return {'PURGED'} end
local found = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if not string.find(found, '"' .. ARGV[2] .. '"', 1, true) then return {'NONE'} end
redis.call('HDEL', KEYS[1], ARGV[1])
return {'OK'}
