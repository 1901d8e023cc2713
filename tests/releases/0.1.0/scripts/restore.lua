--#include lineage
-- Creates a partition at one version, from segments of a copy that were staged before.
-- KEYS  1 P:m
-- ARGV  1 version  2 uid  3 floor  4 retained versions  5 checkpoint format version (1 or 2)
--       6… pairs (manifest field, entry)
-- Reply OK · PRESENT (a manifest exists; nothing was done) · INCOMPLETE found ident
-- Keeps: an existing manifest is never touched, so no version that Redis serves changes; no run holds the
--        partition afterwards, so any registered run may acquire it.
if meta('f') then return {'PRESENT'} end
for i = 6, #ARGV, 2 do
  local blocks = redis.call('HLEN', segment_key(ARGV[i], ARGV[i + 1]))
  local wanted = string.match(ARGV[i + 1], '^%S+ %S+ %S+ (%S+)')
  if blocks ~= tonumber(wanted) then return {'INCOMPLETE', text(blocks), ARGV[i]} end
end
redis.call('HSET', META, 'f', FORMAT, 'e', '0', 'r', '', 'o', ARGV[1], 'ou', ARGV[2],
  'l', ARGV[1], 'lu', ARGV[2], 'n', ARGV[4], 'w', ARGV[3], 'c', ARGV[5])
for i = 6, #ARGV, 2 do
  redis.call('HSET', META, ARGV[i], ARGV[i + 1])
  redis.call('PERSIST', segment_key(ARGV[i], ARGV[i + 1]))
end
return {'OK'}
