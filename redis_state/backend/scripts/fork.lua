--#include lineage
-- Creates a partition of a fork at one version, from segments that another checkpoint pins for it.
-- KEYS  1 P:m
-- ARGV  1 the other checkpoint  2 version  3 uid  4 floor  5 retained versions  6 checkpoint format version (1 or 2)
--       7 ttl of the partition in ms; `renew` removes it  8… triples (field, entry, place), newest first
-- Reply OK · PRESENT version uid (the fork of that checkpoint is here, at this version when it began) · TAKEN (another one is)
-- Keeps: a manifest that a run may have used is never touched; no run holds the partition afterwards, so any registered run may
--        acquire it. Until the fork is complete, its partition names the segments that were pinned last.
local format = meta('f')
if format then
  local parent, version, uid = string.match(meta('g') or '', '^(%S+) (%d+) (%S+)$')
  if parent ~= ARGV[1] then return {'TAKEN'} end
  local is_same = true
  for i = 8, #ARGV, 3 do
    local place = meta('a:' .. ident_of(ARGV[i], ARGV[i + 1]))
    is_same = is_same and meta(ARGV[i]) == ARGV[i + 1] and place == ARGV[i + 2]
  end
  -- Segments of a pin that has ended, in a partition that nobody has used: the version has other segments now.
  local is_unused = meta('e') == '0' and redis.call('PTTL', META) > 0 and not is_purged(format)
  if is_same or not is_unused or version ~= ARGV[2] or uid ~= ARGV[3] then return {'PRESENT', version, uid} end
  redis.call('UNLINK', META)
end
redis.call('HSET', META, 'f', '2', 'e', '0', 'r', '', 'o', ARGV[2], 'ou', ARGV[3], 'l', ARGV[2], 'lu', ARGV[3],
  'n', ARGV[5], 'w', ARGV[4], 'c', ARGV[6], 'g', ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. ARGV[3])
for i = 8, #ARGV, 3 do
  redis.call('HSET', META, ARGV[i], ARGV[i + 1], 'a:' .. ident_of(ARGV[i], ARGV[i + 1]), ARGV[i + 2])
end
redis.call('PEXPIRE', META, ARGV[7])
return {'OK'}
