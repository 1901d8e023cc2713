--#include lineage
-- Condemns a file that a sweep found and that Redis does not know, or that was announced long ago and got no segment.
-- KEYS  1 P:m  2 P:f
-- ARGV  1 file  2 for how many ms an announced file may have no segment
-- Reply OK · USED (also one whose row was lost: the manifest restores it) · YOUNG · CONDEMNED (it was before) · EMPTY · FORMAT found
-- Keeps: what a listing or the list of files shows decides nothing: a file that a place in the manifest names is never condemned here, and a condemned one gets none.
local format = meta('f')
if not format then return {'EMPTY'} end
if not FORMATS[format] then return {'FORMAT', format} end
local state, ms = file_row(ARGV[1])
if state == USED then return {'USED'} end
if state == CONDEMNED then return {'CONDEMNED'} end
-- Redis may have lost the row, but not the places: they are in the manifest.
local segments, bytes, all = 0, 0, redis.call('HGETALL', META)
for i = 1, #all, 2 do
  if sub(all[i], 1, 2) == 'a:' then
    local file, offset, length = match(all[i + 1], '^f (%S+) (%d+) (%d+) ')
    if file == ARGV[1] then
      segments, bytes = segments + 1, math.max(bytes, tonumber(offset) + tonumber(length))
    end
  end
end
if segments > 0 then
  set_file(ARGV[1], USED, segments, text(bytes))
  return {'USED'}
end
if state == ANNOUNCED and now_ms() - ms < tonumber(ARGV[2]) then return {'YOUNG'} end
set_file(ARGV[1], CONDEMNED, 0, '0')
return {'OK'}
