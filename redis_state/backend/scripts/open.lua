--#include lineage
-- Opens version v for reading or writing. Changes nothing unless the caller's run holds the partition or contends for it.
-- KEYS  1 P:m
-- ARGV  1 run id ('' for a reader outside Spark)   2 version, or 'opened' for the newest confirmed one
--       3 wanted uid, or '' for the one on the living timeline   4… pairs (version, uid) that the caller has cached
--       last, behind the pairs, so that the number of arguments is even, letters: 't' asks for the time of version + 1,
--       'r' for a hot run of a bounded partition in the place of the deltas that it merges
-- Reply OK version uid held opened floor start-version start-uid [time] [field entry place]…
--         held is 1 if the caller's run holds the partition or contends for it; the segments run from the newest to the oldest; apply
--         them over (start-version, start-uid), which is a cached pair, or 0 and '-' if the oldest segment stands alone. The
--         place is empty, or names the checkpoint that has the key of a foreign segment. The base of a hot run follows the run.
--         time: seconds since 1970, only if asked for: of the attempt at version + 1 on top of the opened one that the living
--         timeline has, else by the clock of the server. The caller raises it to the time of the opened version.
--       EMPTY [time] (version 0 of a partition without meta) · FORMAT found · FENCED opened found |FENCED pinned found
--       STATE_LOST latest floor [time] · VERSION_EXPIRED floor latest [time] (the time only if the version itself is missing, for a
--         store that is loaded empty: of the attempt at version + 1 without a parent, else by the clock of the server)
-- Keeps: Spark's log has the batch of a contender that opens its own attempt: it then holds the partition, without contenders.
--        opened never falls within a run. All attempts of a run at one version see one uid. A version without a uid is the
--        one that the run continued from, not the one that a sibling committed last. A hot run is listed only together with the
--        base that it stands on.
local run, wanted = ARGV[1], ARGV[3]
local asked = #ARGV % 2 == 0 and ARGV[#ARGV] or ''
local with_time = string.find(asked, 't', 1, true)
local format = meta('f')
if not format then
  if ARGV[2] == '0' or ARGV[2] == 'opened' then return {'EMPTY', with_time and server_s() or nil} end
  return {'STATE_LOST', '0', '0', with_time and server_s() or nil}
end
if not FORMATS[format] then return {'FORMAT', format} end

local opened, opened_uid = number('o'), meta('ou')
local version = ARGV[2] == 'opened' and opened or tonumber(ARGV[2])
local holds = run ~= '' and meta('r') == run
local rival = run ~= '' and not holds and contender(run)
-- Above the opened version a contender has only its own attempts; with another one it is like any other run.
if rival and version > opened and wanted ~= '' and not has(rival.uids, wanted) then rival = nil end
local held = holds or rival
if held and version < opened then return {'FENCED', 'opened', text(opened)} end

local uid
if version == 0 then
  uid = '-'
elseif ARGV[2] == 'opened' then
  uid = opened_uid
elseif wanted ~= '' then
  uid = wanted
elseif held and version == opened then
  uid = opened_uid
elseif rival and version == opened + 1 then
  uid = rival.uids[#rival.uids]
else
  uid = found_by_version(version)
end
-- A store that is loaded empty needs the time although the version, or one below it, is missing.
local function refused(at)
  local reply = missing(at)
  if with_time then reply[#reply + 1] = time_above(version, '-') or server_s() end
  return reply
end
if version > 0 and (not uid or not is_there(version, uid)) then return refused(version) end
if held and version == opened and uid ~= opened_uid then return {'FENCED', 'pinned', opened_uid} end

local cached = {}
for i = 4, #ARGV - 1, 2 do cached[delta_field(ARGV[i], ARGV[i + 1])] = true end
local reply = {'OK', text(version), uid, held and '1' or '0', text(opened), meta('w'), '0', '-'}
if with_time then reply[9] = time_above(version, uid) or server_s() end
local has_places = format ~= FORMAT
local length = #reply
local function list(field, entry)
  reply[length + 1] = field
  reply[length + 2] = entry
  reply[length + 3] = has_places and meta('a:' .. ident_of(field, entry)) or ''
  length = length + 3
end
local uses_runs = has_places and string.find(asked, 'r', 1, true) and is_bounded()
-- Lists the hot run of a version and its base, where the base is there and the caller has nothing above it; returns whether it did.
local list_run = uses_runs and function(field)
  local value = meta(field)
  local base_version, base_uid = match(value or '', '^(%d+) (%S+) %S+ %d')
  for i = 4, base_version and #ARGV - 1 or 0, 2 do
    if tonumber(ARGV[i]) >= tonumber(base_version) then return false end
  end
  if not base_version then return false end
  local name, base = alone_at(base_version, base_uid)
  if not base then return false end
  reply[length + 1], reply[length + 2], reply[length + 3] = field, value, ''
  length = length + 3
  list(name, base)
  return true
end
-- This loop is most of the time of an open: looked up once, a name that differs in its first letter, no length of a long reply.
local call = redis.call
local at, at_uid = version, uid
local delta_name = delta_field(at, at_uid)
while at > 0 and not cached[delta_name] do
  local snapshot_name = 's' .. sub(delta_name, 2)
  local found = call('HMGET', META, delta_name, snapshot_name)
  local delta, snapshot = found[1], found[2]
  local parent = delta and ref(delta)
  local parent_name = delta and delta_field(at - 1, parent)
  if snapshot and not (delta and cached[parent_name]) then
    list(snapshot_name, snapshot)
    at, at_uid = 0, '-'
  elseif list_run and list_run('r' .. sub(delta_name, 2)) then
    at, at_uid = 0, '-'
  elseif delta then
    list(delta_name, delta)
    if has_flag(delta, 'c') then
      at, at_uid = 0, '-'
    else
      at, at_uid, delta_name = at - 1, parent, parent_name
    end
  else
    return refused(at)
  end
end
reply[7], reply[8] = text(at), at_uid

if held and version > opened then
  redis.call('HSET', META, 'r', run, 'o', text(version), 'ou', uid, 'l', text(version), 'lu', uid)
  redis.call('HDEL', META, 'b', 'k', 'tv', 'u')
end
return reply
