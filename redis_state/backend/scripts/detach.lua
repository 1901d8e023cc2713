--#include lineage
-- Checks whether a fork still names segments of another checkpoint, and removes the name of its parent after the unpin.
-- KEYS  1 P:m
-- ARGV  1 ms to pass between the last foreign segment and the unpin  2 '1' after the parent was unpinned
-- Reply NONE (no fork) · FOREIGN segments · WAITS ms · DUE parent (unpin it, then send this again with ARGV 2) · OK
--       FORMAT found
-- Keeps: the parent is unpinned a while after the last foreign segment: a fail-over may restore that segment.
local format = meta('f')
if not format or not meta('g') then return {'NONE'} end
if not FORMATS[format] then return {'FORMAT', format} end
local foreign = 0
local all = redis.call('HGETALL', META)
for i = 1, #all, 2 do
  if string.find(all[i], '^a:') and string.find(all[i + 1], '^p ') then foreign = foreign + 1 end
end
if foreign > 0 then
  redis.call('HDEL', META, 'gt')
  return {'FOREIGN', text(foreign)}
end
local since = meta('gt')
if not since then
  since = text(now_ms())
  redis.call('HSET', META, 'gt', since)
end
local left = tonumber(since) + tonumber(ARGV[1]) - now_ms()
if left > 0 then return {'WAITS', text(left)} end
if ARGV[2] ~= '1' then return {'DUE', string.match(meta('g'), '^%S+')} end
redis.call('HDEL', META, 'g', 'gt')
settle_format()
return {'OK'}
