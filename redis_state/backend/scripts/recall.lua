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
  local field, entry = segment_in(all[i], all[i + 1])
  if field and not meta('a:' .. ident_of(field, entry)) then
    local key, is_aside = segment_key(field, entry), field ~= all[i]
    segments[#segments + 1] = {key, is_aside}
    if redis.call('HLEN', key) ~= tonumber(string.match(entry, '^%S+ %S+ %S+ (%S+)')) then incomplete = incomplete + 1 end
  end
end
local left_ms, format, run = string.match(meta('p'), '^(%S+) (%S+) (.*)$')
local keep_ms = math.max(0, tonumber(left_ms))
for _, one in ipairs(segments) do
  if one[2] then redis.call('PEXPIRE', one[1], ASIDE_MS) else keep(one[1], keep_ms) end
end
keep(META, keep_ms)
redis.call('PERSIST', FILES)
redis.call('HDEL', META, 'p')
if format == '-' then redis.call('HDEL', META, 'f') else redis.call('HSET', META, 'f', format) end
redis.call('HSET', META, 'r', run)
return {'OK', text(#segments), text(incomplete)}
