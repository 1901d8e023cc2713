--#include lineage
-- Renews the expiry of every key of a partition in an ephemeral checkpoint, or removes it in any other checkpoint and where others
-- pin segments.
-- KEYS  1 P:m
-- ARGV  1 keep ms (0 = for ever)
-- Reply OK segments · EMPTY · FORMAT found (the partition was purged, and still expires)
local all = redis.call('HGETALL', META)
if #all == 0 then return {'EMPTY'} end
if is_purged(meta('f')) then return {'FORMAT', meta('f')} end
local renewed = 0
for i = 1, #all, 2 do
  if string.match(all[i], '^[ds]:%d+:') and not file_of(ident_of(all[i], all[i + 1])) then
    keep(segment_key(all[i], all[i + 1]), ARGV[1])
    renewed = renewed + 1
  end
end
keep(META, ARGV[1])
return {'OK', text(renewed)}
