-- Shared by the scripts that know the hot runs of a bounded partition: behind `lineage` (docs/format.md, section 18). The value of a field
-- `r:<version>:<uid>` is `<version> <uid> <entry>`: the base that the run stands on, and its entry.
local function run_field(version, uid) return 'r:' .. text(version) .. ':' .. uid end
local function run_words(value) return match(value or '', '^(%d+) (%S+) (%S+ %d+ %d+ %d+ %d+ .+)$') end

-- Finds hot runs by their versions, before the first write of a script, as `here` does.
local function runs_of(goes)
  local found = {}
  if not is_bounded() then return found end
  local all = redis.call('HGETALL', META)
  for i = 1, #all, 2 do
    local begin, version = match(all[i], '^(r:(%d+):)')
    if begin and goes(tonumber(version), all[i]) then
      local _, _, entry = run_words(all[i + 1])
      local ident = entry and begin .. ref(entry)
      if ident then redis.call('HLEN', PREFIX .. ':' .. ident) end
      found[#found + 1] = {field = all[i], ident = ident, entry = entry}
    end
  end
  return found
end

-- Drops hot runs: every version is there without them.
local function drop_runs(found)
  has_pins = has_pins or #found > 0
  for _, one in ipairs(found) do
    redis.call('HDEL', META, one.field)
    if one.ident then expire_dropped(one.ident, one.entry, BOUNDED_TTL_MS) end
  end
end
