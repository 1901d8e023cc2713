--#include lineage
--#include hot
-- Sets an expiry on a partition and every segment that its manifest names; from then on nothing of it is served.
-- KEYS  1 P:m
-- ARGV  1 ttl in ms  2 id of the checkpoint  3 '1' to purge what others pin, too
-- Reply OK segments · EMPTY · PINNED owner… (nothing was done)
-- Keeps: the format number is replaced by `purged:<gen>`, which every release refuses by name, and no run holds the
--        partition, so nothing is published on expiring keys. No expiry is prolonged.
local function expire(key)
  local left_ms = redis.call('PTTL', key)
  if left_ms == -1 or left_ms > tonumber(ARGV[1]) then redis.call('PEXPIRE', key, ARGV[1]) end
end

local all = redis.call('HGETALL', META)
if #all == 0 then return {'EMPTY'} end
local named, segments, pinned = {}, {}, {'PINNED'}
for i = 1, #all, 2 do
  local field, entry = segment_in(all[i], all[i + 1])
  if field then
    segments[#segments + 1] = #named + 1
    named[#named + 1] = field
    named[#named + 1] = entry
  end
  local owner = string.match(all[i], '^x:(.+)$')
  local expires = owner and tonumber(string.match(all[i + 1], '^%S+ %S+ (%d+) '))
  if expires and (expires == 0 or expires > now_ms()) then pinned[#pinned + 1] = owner end
end
if #pinned > 1 and ARGV[3] ~= '1' then return pinned end
here(named, segments)
local runs = runs_of(function() return true end)
local format = meta('f')
if not is_purged(format) then
  local before = {text(redis.call('PTTL', META)), format or '-', meta('r') or ''}
  redis.call('HSET', META, 'f', 'purged:' .. ARGV[2], 'r', '', 'p', table.concat(before, ' '))
end
for _, i in ipairs(segments) do expire(segment_key(named[i], named[i + 1])) end
drop_runs(runs)
expire(FILES)
expire(META)
return {'OK', text(#segments)}
