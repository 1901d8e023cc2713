-- Renews the entry of an instance that still serves its partition.
-- KEYS  1 {T rs:<gen>}:i:<operator>:<partition>:<store>
-- ARGV  1 value that the instance wrote there  2 ttl in ms
-- Reply OK · LOST found (another instance reported later; '' if the run was told to leave)
-- Keeps: the instance that reported last stays; an older one never replaces it.
local found = redis.call('GET', KEYS[1])
if found and found ~= ARGV[1] then return {'LOST', found} end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {'OK'}
