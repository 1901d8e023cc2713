-- Registers a fork that is not complete yet, unless it is registered.
-- KEYS  1 {T rs:<gen>}:q
-- ARGV  1 ttl in ms  2… pairs (field, value)
-- Reply OK · PRESENT (nothing was done) · PURGED
-- Keeps: a call that arrives late gives no expiry to a fork that is complete.
if redis.call('HEXISTS', KEYS[1], 'purged') == 1 then return {'PURGED'} end
if redis.call('EXISTS', KEYS[1]) == 1 then return {'PRESENT'} end
for i = 2, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return {'OK'}
