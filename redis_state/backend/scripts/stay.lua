-- Notes that a query is used: removes or renews its expiry.
-- KEYS  1 {T rs:<gen>}:q
-- ARGV  1 keep ms (0 = for ever); '' leaves the expiry as it is  2… pairs (field, value) to set
-- Reply OK · PURGED
-- Keeps: a purged query is not renewed before it is recalled.
local query = KEYS[1]
if redis.call('HEXISTS', query, 'purged') == 1 then return {'PURGED'} end
for i = 2, #ARGV, 2 do redis.call('HSET', query, ARGV[i], ARGV[i + 1]) end
if ARGV[1] == '0' then
  redis.call('PERSIST', query)
elseif ARGV[1] ~= '' then
  redis.call('PEXPIRE', query, ARGV[1])
end
return {'OK'}
