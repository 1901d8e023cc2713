-- Gives the name of a Python checkpoint to another one.
-- KEYS  1 {T rs}:n
-- ARGV  1 field of the name   2 gen that has the name   3 gen that gets it
-- Reply OK (the new gen has the name) · TAKEN gen (another gen has it; '-' for none)
-- Keeps: the name changes hands in one step.
local found = redis.call('HGET', KEYS[1], ARGV[1])
if found == ARGV[3] then return {'OK'} end
if found ~= ARGV[2] then return {'TAKEN', found or '-'} end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return {'OK'}
