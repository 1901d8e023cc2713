--#include lineage
-- Creates a partition at one version, from segments that were staged before, or that files have.
-- KEYS  1 P:m
-- ARGV  1 version  2 uid  3 floor  4 retained versions  5 checkpoint format version (1 or 2)
--       6… triples (manifest field, entry, place); the place is empty for a staged segment, else that of a file
-- Reply OK · PRESENT (a manifest exists; nothing was done) · INCOMPLETE found field
--       GONE (a file that was announced for this is condemned or unknown; files of copies need no row)
-- Keeps: an existing manifest is never touched, so no version that Redis serves changes; no run holds the
--        partition afterwards, so any registered run may acquire it. Each file that a place names gets its row.
if meta('f') then return {'PRESENT'} end
for i = 6, #ARGV, 3 do
  local file = match(ARGV[i + 2], '^f (%S+%.seg) ')
  local state = file and file_row(file)
  if file and state ~= ANNOUNCED and state ~= USED then return {'GONE'} end
end
for i = 6, #ARGV, 3 do
  if ARGV[i + 2] == '' then
    local blocks = redis.call('HLEN', segment_key(ARGV[i], ARGV[i + 1]))
    local wanted = string.match(ARGV[i + 1], '^%S+ %S+ %S+ (%S+)')
    if blocks ~= tonumber(wanted) then return {'INCOMPLETE', text(blocks), ARGV[i]} end
  end
end
redis.call('HSET', META, 'f', FORMAT, 'e', '0', 'r', '', 'o', ARGV[1], 'ou', ARGV[2],
  'l', ARGV[1], 'lu', ARGV[2], 'n', ARGV[4], 'w', ARGV[3], 'c', ARGV[5])
local segments, bytes = {}, {}
for i = 6, #ARGV, 3 do
  redis.call('HSET', META, ARGV[i], ARGV[i + 1])
  local file, offset, length = match(ARGV[i + 2], '^f (%S+) (%d+) (%d+) ')
  if file then
    redis.call('HSET', META, 'f', '2', 'a:' .. ident_of(ARGV[i], ARGV[i + 1]), ARGV[i + 2])
    segments[file] = (segments[file] or 0) + 1
    bytes[file] = math.max(bytes[file] or 0, tonumber(offset) + tonumber(length))
  else
    redis.call('PERSIST', segment_key(ARGV[i], ARGV[i + 1]))
  end
end
for file, count in pairs(segments) do set_file(file, USED, count, text(bytes[file])) end
if next(segments) then redis.call('PERSIST', FILES) end
return {'OK'}
