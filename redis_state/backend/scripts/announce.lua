--#include lineage
-- Makes a file known before it exists (docs/format.md, section 17).
-- KEYS  1 P:m  2 P:f
-- ARGV  1 file
-- Reply OK · TAKEN (the name was used: choose another one) · EMPTY · EXPIRES (an ephemeral checkpoint has no files) · FORMAT found
-- Keeps: Redis knows each file before it exists and until it is gone.
local format = meta('f')
if not format then return {'EMPTY'} end
if not FORMATS[format] then return {'FORMAT', format} end
if redis.call('PTTL', META) > 0 then return {'EXPIRES'} end
if file_row(ARGV[1]) then return {'TAKEN'} end
set_file(ARGV[1], ANNOUNCED, 0, '0')
return {'OK'}
