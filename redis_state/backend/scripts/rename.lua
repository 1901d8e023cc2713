-- Give a name to another checkpoint of Python.
-- KEYS  1 {T rs}:n
-- ARGV  1 field of the name   2 gen that it has   3 gen that it gets
-- Reply OK (it has the new one) · TAKEN gen (another one has it; '-' for none)
-- Keeps: the name goes from the one to the other in one step.
local found = redis.call('HGET', KEYS[1], ARGV[1])
if found == ARGV[3] then return {'OK'} end
if found ~= ARGV[2] then return {'TAKEN', found or '-'} end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return {'OK'}
