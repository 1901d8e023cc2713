--#include lineage
-- Gives a published segment the expiry of its manifest: none, or that of an ephemeral checkpoint.
-- KEYS  1 P:m  2 key of the segment
-- ARGV  1 its manifest field  2 its entry
-- Reply OK · GONE (the manifest no longer names it, or a file holds it)
-- Keeps: segments that retention dropped still expire.
if meta(ARGV[1]) ~= ARGV[2] or file_of(ident_of(ARGV[1], ARGV[2])) then return {'GONE'} end
keep(KEYS[2], math.max(0, redis.call('PTTL', META)))
return {'OK'}
