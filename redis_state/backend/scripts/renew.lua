--#include lineage
-- Renews the expiry of every key of a partition in an ephemeral checkpoint, or removes it in any other checkpoint and where others
-- pin segments.
-- KEYS  1 P:m
-- ARGV  1 keep ms (0 = for ever)  2 '1' for a partition that is being made, which nobody pins: it may expire with its list of files
-- Reply OK segments · EMPTY · FORMAT found (the partition was purged, and still expires)
local all = redis.call('HGETALL', META)
if #all == 0 then return {'EMPTY'} end
if is_purged(meta('f')) then return {'FORMAT', meta('f')} end
local renewed = 0
local function set(key)
  if ARGV[2] == '1' and ARGV[1] ~= '0' then
    redis.call('PEXPIRE', key, ARGV[1])
  else
    keep(key, ARGV[1])
  end
end
for i = 1, #all, 2 do
  if string.match(all[i], '^[ds]:%d+:') and not file_of(ident_of(all[i], all[i + 1])) then
    set(segment_key(all[i], all[i + 1]))
    renewed = renewed + 1
  end
end
if ARGV[2] == '1' then set(FILES) end
set(META)
return {'OK', text(renewed)}
