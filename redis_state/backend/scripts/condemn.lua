--#include lineage
-- Condemns a file that a sweep found and that Redis does not know, or that was announced long ago and got no segment.
-- KEYS  1 P:m  2 P:f
-- ARGV  1 file  2 for how many ms an announced file may have no segment
-- Reply OK · USED · YOUNG · CONDEMNED (it was before) · EMPTY · FORMAT found
-- Keeps: what a listing shows decides nothing: a file that has a segment is never condemned here, and a condemned one gets none.
local format = meta('f')
if not format then return {'EMPTY'} end
if not FORMATS[format] then return {'FORMAT', format} end
local state, ms = file_row(ARGV[1])
if state == USED then return {'USED'} end
if state == CONDEMNED then return {'CONDEMNED'} end
if state == ANNOUNCED and now_ms() - ms < tonumber(ARGV[2]) then return {'YOUNG'} end
set_file(ARGV[1], CONDEMNED, 0, '0')
return {'OK'}
