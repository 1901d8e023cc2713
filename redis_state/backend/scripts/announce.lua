--#include lineage
-- Makes a file known before it exists (docs/format.md, section 17).
-- KEYS  1 P:m  2 P:f
-- ARGV  1 file  2 ttl in ms of the list of files of a partition that is about to be made; absent: it has to be there
-- Reply OK · TAKEN (the name was used: choose another one) · EMPTY · EXPIRES (an ephemeral checkpoint has no files) · FORMAT found
-- Keeps: Redis knows each file before it exists and until it is gone.
local format = meta('f')
if not format and not ARGV[2] then return {'EMPTY'} end
if format and not FORMATS[format] then return {'FORMAT', format} end
if redis.call('PTTL', META) > 0 then return {'EXPIRES'} end
if file_row(ARGV[1]) then return {'TAKEN'} end
set_file(ARGV[1], ANNOUNCED, 0, '0')
if format then
  redis.call('PERSIST', FILES)
elseif redis.call('HLEN', FILES) == 1 or redis.call('PTTL', FILES) >= 0 then
  redis.call('PEXPIRE', FILES, ARGV[2])
end
return {'OK'}
