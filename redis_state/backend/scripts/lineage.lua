-- Shared by the scripts of one partition (docs/format.md, sections 3 and 5). KEYS[1] is always `P:m`.
local META = KEYS[1]
local PREFIX = string.sub(META, 1, -3)
local FORMAT = '1'
-- Files of the partition (docs/format.md, section 17), and their states.
local FILES = PREFIX .. ':f'
local ANNOUNCED, USED, CONDEMNED = 'n', 'u', 'd'
-- Format 2 has fields that releases of format 1 do not know: pins, segments set aside, places of segments.
local FORMATS = {['1'] = true, ['2'] = true}
local TOUCH_MS = 60000
local ASIDE_MS = 315360000000

local function meta(field) return redis.call('HGET', META, field) end
local function number(field) return tonumber(meta(field) or '0') end
local function text(version) return string.format('%d', version) end
local function delta_field(version, uid) return 'd:' .. text(version) .. ':' .. uid end
local function snapshot_field(version, uid) return 's:' .. text(version) .. ':' .. uid end

-- First word of a manifest entry: the parent of a delta, the writer of a snapshot.
local match, sub = string.match, string.sub
local function ref(entry) return match(entry, '^%S+') end

-- Flags are the last word, and few: a pattern that begins anywhere costs more than all else of a step.
local function has_flag(entry, flag)
  for at = #entry, 1, -1 do
    local letter = sub(entry, at, at)
    if letter == flag then return true end
    if letter == ' ' then return false end
  end
  return false
end

local function is_there(version, uid)
  return redis.call('HEXISTS', META, delta_field(version, uid)) == 1
    or redis.call('HEXISTS', META, snapshot_field(version, uid)) == 1
end

-- Field and entry of the segment of a version that stands alone; nil if none does.
local function alone_at(version, uid)
  local field = snapshot_field(version, uid)
  local entry = meta(field)
  if entry then return field, entry end
  field = delta_field(version, uid)
  entry = meta(field)
  if entry and has_flag(entry, 'c') then return field, entry end
  return nil
end

-- Ident of the segment that a manifest field and its entry name: what stands behind `P:` in its key.
local function ident_of(field, entry)
  if string.sub(field, 1, 2) == 'd:' then return field end
  return string.match(field, '^s:%d+:') .. ref(entry)
end

local function segment_key(field, entry) return PREFIX .. ':' .. ident_of(field, entry) end

-- Follows parents from (version, uid) down to `target`; returns its uid, or nil if the chain is cut.
local function walk(version, uid, target)
  while version > target do
    local entry = meta(delta_field(version, uid))
    if not entry then return nil end
    uid = ref(entry)
    version = version - 1
  end
  if version ~= target then return nil end
  return uid
end

local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function server_s() return redis.call('TIME')[1] end

-- Notes the time of the last write, to the minute: most commits find it recent and write nothing.
local function touch()
  local now = now_ms()
  if math.abs(now - number('t')) >= TOUCH_MS then redis.call('HSET', META, 't', text(now)) end
end

-- Returns whether the partition was purged: then it expires, and no run opens, acquires or publishes on it until a recall.
local function is_purged(format) return format and string.sub(format, 1, 6) == 'purged' end

-- Runs that held (o, ou) before the holding run took it there, oldest first, each with its attempts right above. The run
-- whose batch Spark logged is known once one of them opens its own attempt.
local function contenders()
  local found = {}
  for run, uids in string.gmatch(meta('k') or '', '(%S+):(%S*)') do
    local one = {run = run, uids = {}}
    for uid in string.gmatch(uids, '[^,]+') do one.uids[#one.uids + 1] = uid end
    found[#found + 1] = one
  end
  return found
end

local function contender(run)
  for _, one in ipairs(contenders()) do
    if one.run == run then return one end
  end
  return nil
end

local function set_contenders(all)
  local words = {}
  for i, one in ipairs(all) do words[i] = one.run .. ':' .. table.concat(one.uids, ',') end
  if #words > 0 then
    redis.call('HSET', META, 'k', table.concat(words, ' '))
  else
    redis.call('HDEL', META, 'k')
  end
end

local function has(uids, uid)
  for _, one in ipairs(uids) do
    if one == uid then return true end
  end
  return false
end

-- Returns the attempt that a version without uid means: the holding run's, or the last contender's if that has none.
local function found_by_version(version)
  local uid = walk(number('l'), meta('lu'), version)
  if not uid and version == number('o') + 1 then
    for _, one in ipairs(contenders()) do uid = one.uids[#one.uids] or uid end
  end
  return uid
end

-- Time of version + 1 for a batch that is run again (docs/format.md, section 15): of the attempt on top of (version, uid) that
-- is there, or was there before a run acquired the version; nil without one.
local function time_above(version, uid)
  if version < number('o') then return nil end
  local above = found_by_version(version + 1)
  local entry = above and meta(delta_field(version + 1, above))
  if entry and ref(entry) == uid then return has_flag(entry, 't') and match(entry, '(%d+) %S+$') or nil end
  local at, of, time = match(meta('tv') or '', '^(%d+) (%S+) (%d+)$')
  if at == text(version + 1) and of == uid then return time end
  return nil
end

-- Returns why a version is missing: below the floor it expired, above it was lost.
local function missing(version)
  local latest = meta('l') or '0'
  if version < number('w') then return {'VERSION_EXPIRED', meta('w'), latest} end
  return {'STATE_LOST', latest, meta('w') or '0'}
end

-- Ends the script before its first write, if the segment of one of these manifest fields, or the list of files, has moved to
-- another node of a cluster.
local function here(all, fields)
  redis.call('HLEN', FILES)
  for _, i in ipairs(fields) do redis.call('HLEN', segment_key(all[i], all[i + 1])) end
end

-- Segment that a field of the manifest names, set aside or not: its manifest field and entry; nil for other fields.
local function segment_in(field, value)
  if string.match(field, '^z:') then field, value = string.match(value, '^(%S+) (.+)$') end
  if field and string.match(field, '^[ds]:%d+:') and ref(value) then return field, value end
  return nil
end

local function is_pinned(ident) return redis.call('HEXISTS', META, 'y:' .. ident) == 1 end

-- Row of a file: state, ms of its last change, segments, bytes; nil for an unknown file.
local function file_row(file)
  local state, ms, segments, bytes = match(redis.call('HGET', FILES, file) or '', '^(%a) (%d+) (%d+) (%d+)$')
  return state, tonumber(ms), tonumber(segments), bytes
end

local function set_file(file, state, segments, bytes)
  redis.call('HSET', FILES, file, table.concat({state, text(now_ms()), text(segments), bytes}, ' '))
end

-- File that has the blocks of a segment; nil if Redis has them, or another checkpoint.
local function file_of(ident) return match(meta('a:' .. ident) or '', '^f (%S+) ') end

-- Removes the place of a segment. A file whose last segment leaves is condemned.
local function displace(ident)
  local file = file_of(ident)
  redis.call('HDEL', META, 'a:' .. ident)
  local state, _, segments, bytes = file_row(file or '')
  if state == USED then set_file(file, segments > 1 and USED or CONDEMNED, segments - 1, bytes) end
end

-- Removes a segment from the manifest. Its key lives `ttl_ms` longer for readers under way. A pinned segment is set aside, where
-- no version finds it; its key gets an expiry of ten years, since maintenance of format 1 leaves alone what expires.
local has_pins

-- Memory bound of the partition (docs/format.md, section 18), and how long dropped segments stay in a bounded one.
local BOUND, BOUNDED_TTL_MS = 'h', 60000
local function is_bounded() return redis.call('HEXISTS', META, BOUND) == 1 end

-- Lets the key of a dropped segment expire. In a bounded partition it counts until it is gone.
local function expire_dropped(ident, entry, ttl_ms)
  if has_pins and is_bounded() and not meta('a:' .. ident) then
    redis.call('HSET', META, 'h:' .. ident, 'd ' .. match(entry, '^%S+ %S+ %S+ (%d+ %d+)'))
    ttl_ms = math.min(tonumber(ttl_ms), BOUNDED_TTL_MS)
  end
  redis.call('PEXPIRE', PREFIX .. ':' .. ident, ttl_ms)
end

local function drop(field, entry, ttl_ms)
  if has_pins == nil then has_pins = meta('f') ~= FORMAT end
  local ident = ident_of(field, entry)
  redis.call('HDEL', META, field)
  if has_pins and is_pinned(ident) then
    redis.call('HSET', META, 'z:' .. ident, field .. ' ' .. entry)
    if not file_of(ident) then redis.call('PEXPIRE', PREFIX .. ':' .. ident, ASIDE_MS) end
    return
  end
  expire_dropped(ident, entry, ttl_ms)
  if has_pins then displace(ident) end
end

-- `<uid> <number>` of the preview, or '' for none; the number of an attempt that ended is `-`.
local function preview_known() return match(meta('u') or '', '^%d+ (%S+ %S+)') or '' end

-- Returns the preview if it was set in this epoch and has not expired.
local function preview_valid()
  local version, uid, seq, parent, epoch, expires = match(meta('u') or '', '^(%d+) (%S+) (%d+) (%S+) (%d+) (%d+)')
  if not version or epoch ~= meta('e') or tonumber(expires) <= now_ms() then return nil end
  return {version = tonumber(version), uid = uid, number = seq, parent = parent}
end

-- Gives the partition the format number that its fields need.
local function settle_format()
  local found = FORMAT
  local all = redis.call('HGETALL', META)
  for i = 1, #all, 2 do
    if all[i] == 'g' or all[i] == BOUND or string.find(all[i], '^[axyz]:') then found = '2' end
  end
  redis.call('HSET', META, 'f', found)
end

-- A kept key has no expiry, except in an ephemeral checkpoint (keep_ms > 0). What others pin outlives an ephemeral run.
local function keep(key, keep_ms)
  if tonumber(keep_ms) > 0 and meta('f') ~= '2' then
    redis.call('PEXPIRE', key, keep_ms)
    redis.call('PEXPIRE', META, keep_ms)
  else
    redis.call('PERSIST', key)
  end
end
