-- Stores blocks of a segment that no manifest names yet; without fields, renews the expiry of an open write set.
-- KEYS  1 P:m  2 key of the segment
-- ARGV  1 its manifest field  2 ttl in ms  3… pairs (field, block)
-- Reply OK · PUBLISHED (nothing was done)
-- Keeps: a published segment never gets an expiry and never changes, however late this call arrives.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then return {'PUBLISHED'} end
for i = 3, #ARGV, 2 do redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return {'OK'}
