-- Drops the staged blocks of an aborted attempt.
-- KEYS  1 P:m  2 key of the segment
-- ARGV  1 its manifest field   2 'u' if the attempt may have set previews: then it sets none any more
-- Reply OK · PUBLISHED (nothing was done)
-- Keeps: a segment that was published is never touched, whether it is in the manifest or set aside. A preview that arrives
--        after this call is refused.
local aside = 'z:' .. string.sub(KEYS[2], #KEYS[1])
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 or redis.call('HEXISTS', KEYS[1], aside) == 1 then return {'PUBLISHED'} end
redis.call('UNLINK', KEYS[2])
-- A server without memory refuses the mark; then the preview expires by itself.
local version, uid = string.match(ARGV[1], '^d:(%d+):(.+)$')
if ARGV[2] == 'u' and redis.call('EXISTS', KEYS[1]) == 1 then redis.pcall('HSET', KEYS[1], 'u', version .. ' ' .. uid .. ' -') end
return {'OK'}
