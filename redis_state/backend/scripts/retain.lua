--#include lineage
-- Take out of the manifest what no kept version needs: retention.
-- KEYS  1 P:m
-- ARGV  1 ttl in ms of dropped keys (readers under way finish in that time)
-- Reply OK floor segments-dropped bytes-dropped segments-kept · EMPTY · FORMAT found
-- Keeps: every version at or above the floor loads as before. `floor` never falls. Only what Redis holds decides:
--        opened and retain of the holding run, never the caller's conf, never the highest version present.
local format = meta('f')
if not format then return {'EMPTY'} end
if format ~= FORMAT then return {'FORMAT', format} end
local opened, retained = number('o'), number('n')
local floor = math.max(number('w'), opened - retained)

-- The lineage of the opened version, as far down as it goes, and the snapshots on it, newest first.
local lineage, bases = {}, {}
local at, uid = opened, meta('ou')
while at > 0 do
  local delta_name, snapshot_name = delta_field(at, uid), snapshot_field(at, uid)
  local delta = meta(delta_name)
  if redis.call('HEXISTS', META, snapshot_name) == 1 then
    lineage[snapshot_name] = true
    bases[#bases + 1] = at
  elseif delta and has_flag(delta, 'c') then
    bases[#bases + 1] = at
  end
  if not delta then break end
  lineage[delta_name] = true
  at, uid = at - 1, ref(delta)
end

-- The base carries the floor; above it a snapshot stays if it is the newest, or half the retention away from the last kept.
local base, spacing, kept_bases = nil, math.max(1, math.floor(retained / 2)), {}
for i = #bases, 1, -1 do
  if bases[i] <= floor then base = bases[i] end
end
local last = base or 0
for i = #bases, 1, -1 do
  if bases[i] == base or i == 1 or (bases[i] > last and bases[i] - last >= spacing) then
    kept_bases[bases[i]] = true
    last = bases[i]
  end
end

local gone, bytes, kept = {}, 0, 0
local all = redis.call('HGETALL', META)
for i = 1, #all, 2 do
  local kind, version = string.match(all[i], '^([ds]):(%d+):')
  if kind then
    version = tonumber(version)
    local keep_it = lineage[all[i]] or version > opened
    if kind == 's' and version <= opened and not kept_bases[version] then keep_it = false end
    if base and version < base then keep_it = false end
    if base and kind == 'd' and version == base and lineage[all[i]] and not has_flag(all[i + 1], 'c') then
      keep_it = false
    end
    if keep_it then
      kept = kept + 1
    else
      gone[#gone + 1] = i
      bytes = bytes + tonumber(string.match(all[i + 1], '^%S+ %S+ %S+ %S+ (%S+)'))
    end
  end
end
here(all, gone)
for _, i in ipairs(gone) do drop(all[i], all[i + 1], ARGV[1]) end
if base and base > number('w') then redis.call('HSET', META, 'w', text(base)) end
return {'OK', meta('w'), text(#gone), text(bytes), text(kept)}
