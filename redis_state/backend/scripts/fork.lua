--#include lineage
-- Creates a partition at one version from segments of another checkpoint, which pins them for it.
-- KEYS  1 P:m
-- ARGV  1 the other checkpoint  2 version  3 uid  4 floor  5 retained versions  6 checkpoint format version (1 or 2)
--       7 ttl in ms of the partition, until it gets none  8… triples (field, entry, place), newest first
-- Reply OK · PRESENT version uid (the fork of that checkpoint is here, at this version when it began) · TAKEN (another one is)
-- Keeps: an existing manifest is never touched; no run holds the partition afterwards, so any registered run may acquire it.
local format = meta('f')
if format then
  local parent, version, uid = string.match(meta('g') or '', '^(%S+) (%d+) (%S+)$')
  if parent ~= ARGV[1] then return {'TAKEN'} end
  return {'PRESENT', version, uid}
end
redis.call('HSET', META, 'f', '2', 'e', '0', 'r', '', 'o', ARGV[2], 'ou', ARGV[3], 'l', ARGV[2], 'lu', ARGV[3],
  'n', ARGV[5], 'w', ARGV[4], 'c', ARGV[6], 'g', ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. ARGV[3])
for i = 8, #ARGV, 3 do
  redis.call('HSET', META, ARGV[i], ARGV[i + 1], 'a:' .. ident_of(ARGV[i], ARGV[i + 1]), ARGV[i + 2])
end
redis.call('PEXPIRE', META, ARGV[7])
return {'OK'}
