--#include lineage
-- Sets an expiry on a segment that no manifest names, or that a file holds. One that was set aside expires in years: that counts as no expiry.
-- KEYS  1 P:m  2 key of the segment
-- ARGV  1 part of the key after P:  2 ttl in ms
-- Reply OK · NAMED · EXPIRES (it already has an expiry, or is gone)
-- Keeps: a published segment never gets an expiry; a staged one keeps its own.
local left_ms = redis.call('PTTL', KEYS[2])
if left_ms ~= -1 and left_ms < ASIDE_MS / 2 then return {'EXPIRES'} end
if file_of(ARGV[1]) then
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
  return {'OK'}
end
if meta(ARGV[1]) or meta('z:' .. ARGV[1]) then return {'NAMED'} end
local begin, writer = string.match(ARGV[1], '^([rs]:%d+:)(.+)$')
-- Nobody reads a hot run without a bound, which an older release may have ended.
if begin and (string.sub(begin, 1, 1) == 's' or is_bounded()) then
  local all = redis.call('HGETALL', META)
  for i = 1, #all, 2 do
    -- The entry of a hot run follows its base.
    local entry = string.sub(begin, 1, 1) == 'r' and string.match(all[i + 1], '^%S+ %S+ (.+)$') or all[i + 1]
    if string.sub(all[i], 1, #begin) == begin and ref(entry) == writer then return {'NAMED'} end
  end
end
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return {'OK'}
