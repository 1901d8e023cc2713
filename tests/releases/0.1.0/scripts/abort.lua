-- Drops the staged blocks of an aborted attempt.
-- KEYS  1 P:m  2 key of the segment
-- ARGV  1 its manifest field
-- Reply OK · PUBLISHED (nothing was done)
-- Keeps: a published segment is never touched.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then return {'PUBLISHED'} end
redis.call('UNLINK', KEYS[2])
return {'OK'}
