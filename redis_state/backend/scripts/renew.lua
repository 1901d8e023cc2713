--#include lineage
-- Renew the expiry of every key of a partition in an ephemeral checkpoint.
-- KEYS  1 P:m
-- ARGV  1 ttl in ms
-- Reply OK segments · EMPTY
local all = redis.call('HGETALL', META)
if #all == 0 then return {'EMPTY'} end
local renewed = 0
for i = 1, #all, 2 do
  if string.match(all[i], '^[ds]:%d+:') then
    redis.call('PEXPIRE', segment_key(all[i], all[i + 1]), ARGV[1])
    renewed = renewed + 1
  end
end
redis.call('PEXPIRE', META, ARGV[1])
return {'OK', text(renewed)}
