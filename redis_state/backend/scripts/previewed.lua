--#include lineage
-- Finds what the batch that runs has written on top of a version. Changes nothing.
-- KEYS  1 P:m
-- ARGV  1 version   2 its uid
-- Reply OK epoch uid number [slice entry]…, newest first (a preview of version + 1)
--       NEXT epoch uid (an attempt at version + 1 is committed on top of it) · NONE epoch · FORMAT found
-- Keeps: a preview counts only while it has not expired, in the epoch in which it was set, on top of the version that it was
--        made for.
local version, uid = tonumber(ARGV[1]), ARGV[2]
local format = meta('f')
if not format then return {'NONE', '0'} end
if not FORMATS[format] then return {'FORMAT', format} end
local epoch = meta('e')
if number('l') > version then
  local next_uid = found_by_version(version + 1)
  local entry = next_uid and meta(delta_field(version + 1, next_uid))
  if entry and ref(entry) == uid then return {'NEXT', epoch, next_uid} end
  return {'NONE', epoch}
end
local found = preview_valid()
if not found or number('o') ~= version or found.version ~= version + 1 or found.parent ~= uid then return {'NONE', epoch} end
local reply = {'OK', epoch, found.uid, found.number}
for slice, entry in string.gmatch(meta('u'), '|(%d+) ([^|]+)') do
  reply[#reply + 1] = slice
  reply[#reply + 1] = entry
end
return reply
