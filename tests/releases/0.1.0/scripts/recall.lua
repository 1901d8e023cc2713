--#include lineage
-- Restores a purged partition as it was.
-- KEYS  1 P:m
-- Reply OK segments incomplete · EMPTY · KEPT (it is not purged)
-- Keeps: a recalled manifest and every segment that it names have the expiry of before the purge.
local all = redis.call('HGETALL', META)
if #all == 0 then return {'EMPTY'} end
if not is_purged(meta('f')) then return {'KEPT'} end
local segments, incomplete = {}, 0
for i = 1, #all, 2 do
  if string.match(all[i], '^[ds]:%d+:') and ref(all[i + 1]) then
    segments[#segments + 1] = i
    local blocks = redis.call('HLEN', segment_key(all[i], all[i + 1]))
    if blocks ~= tonumber(string.match(all[i + 1], '^%S+ %S+ %S+ (%S+)')) then incomplete = incomplete + 1 end
  end
end
local left_ms, format, run = string.match(meta('p'), '^(%S+) (%S+) (.*)$')
local keep_ms = math.max(0, tonumber(left_ms))
for _, i in ipairs(segments) do keep(segment_key(all[i], all[i + 1]), keep_ms) end
keep(META, keep_ms)
redis.call('HDEL', META, 'p')
if format == '-' then redis.call('HDEL', META, 'f') else redis.call('HSET', META, 'f', format) end
redis.call('HSET', META, 'r', run)
return {'OK', text(#segments), text(incomplete)}
