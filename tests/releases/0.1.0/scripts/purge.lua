--#include lineage
-- Sets an expiry on a partition and every segment that its manifest names; from then on nothing of it is served.
-- KEYS  1 P:m
-- ARGV  1 ttl in ms  2 id of the checkpoint
-- Reply OK segments · EMPTY
-- Keeps: the format number is replaced by `purged:<gen>`, which every release refuses by name, and no run holds the
--        partition, so nothing is published on expiring keys. No expiry is prolonged.
local function expire(key)
  local left_ms = redis.call('PTTL', key)
  if left_ms == -1 or left_ms > tonumber(ARGV[1]) then redis.call('PEXPIRE', key, ARGV[1]) end
end

local all = redis.call('HGETALL', META)
if #all == 0 then return {'EMPTY'} end
local segments = {}
for i = 1, #all, 2 do
  if string.match(all[i], '^[ds]:%d+:') and ref(all[i + 1]) then segments[#segments + 1] = i end
end
here(all, segments)
local format = meta('f')
if not is_purged(format) then
  local before = {text(redis.call('PTTL', META)), format or '-', meta('r') or ''}
  redis.call('HSET', META, 'f', 'purged:' .. ARGV[2], 'r', '', 'p', table.concat(before, ' '))
end
for _, i in ipairs(segments) do expire(segment_key(all[i], all[i + 1])) end
expire(META)
return {'OK', text(#segments)}
