--#include lineage
-- Removes the segments of a plan from the manifest (docs/format.md, section 8): a part of retention.
-- KEYS  1 P:m
-- ARGV  1 ttl in ms of dropped keys (readers under way finish in that time)  2 epoch  3 opened version  4 its uid
--       5 floor (2 to 5 as the plan found them, the floor as an earlier part of the plan set it)  6 floor to set
--       7 manifest field of the base that carries this floor, or ''  8… manifest fields, few of them, or z:<ident> of segments
--       that were set aside
-- Reply OK segments bytes · STALE (the plan is no longer valid) · EMPTY · FORMAT found
-- Keeps: every version at or above the floor loads as before. `floor` never falls. A plan is valid only while its opened
--        version is one that the query continued from, in the same epoch, no other plan has moved the floor, and its base
--        exists: a fail-over may have lost the base since the plan was made. A pinned segment is set aside; one that was set
--        aside goes only if nobody pins it now, whatever the plan saw.
local GONE_ON_MAX = 200
local format = meta('f')
if not format then return {'EMPTY'} end
if not FORMATS[format] then return {'FORMAT', format} end
local opened, planned = number('o'), tonumber(ARGV[3])
if meta('e') ~= ARGV[2] or meta('w') ~= ARGV[5] then return {'STALE'} end
if opened < planned or opened - planned > GONE_ON_MAX then return {'STALE'} end
if walk(opened, meta('ou'), planned) ~= ARGV[4] then return {'STALE'} end
if ARGV[7] ~= '' and not meta(ARGV[7]) then return {'STALE'} end

local all, gone, asides, bytes = {}, {}, {}, 0
for i = 8, #ARGV do
  local field, entry = ARGV[i], meta(ARGV[i])
  local aside = string.match(field, '^z:(.+)$')
  if aside and entry then field, entry = string.match(entry, '^(%S+) (.+)$') end
  if entry and not (aside and is_pinned(aside)) then
    gone[#gone + 1] = #all + 1
    asides[#gone] = aside or ''
    all[#all + 1] = field
    all[#all + 1] = entry
    bytes = bytes + tonumber(string.match(entry, '^%S+ %S+ %S+ %S+ (%S+)'))
  end
end
here(all, gone)
for n, i in ipairs(gone) do
  if asides[n] == '' then
    drop(all[i], all[i + 1], ARGV[1])
  else
    redis.call('HDEL', META, 'z:' .. asides[n])
    has_pins = true
    expire_dropped(asides[n], all[i + 1], ARGV[1])
    displace(asides[n])
  end
end
if ARGV[6] ~= ARGV[5] then redis.call('HSET', META, 'w', ARGV[6]) end
if format ~= FORMAT then settle_format() end
return {'OK', text(#gone), text(bytes)}
