--#include lineage
-- Opens version v for reading or writing. Changes nothing unless the caller's run holds the partition or contends for it.
-- KEYS  1 P:m
-- ARGV  1 run id ('' for a reader outside Spark)   2 version, or 'opened' for the newest confirmed one
--       3 wanted uid, or '' for the one on the living timeline   4… pairs (version, uid) that the caller has cached
-- Reply OK version uid held opened floor start-version start-uid [field entry]…
--         held is 1 if the caller's run holds the partition or contends for it; the segments run from the newest to the oldest; apply
--         them over (start-version, start-uid), which is a cached pair, or 0 and '-' if the oldest segment stands alone.
--       EMPTY (version 0 of a partition without meta) · FORMAT found · FENCED opened found |FENCED pinned found
--       STATE_LOST latest floor · VERSION_EXPIRED floor latest
-- Keeps: Spark's log has the batch of a contender that opens its own attempt: it then holds the partition, without contenders.
--        opened never falls within a run. All attempts of a run at one version see one uid. A version without a uid is the
--        one that the run continued from, not the one that a sibling committed last.
local run, wanted = ARGV[1], ARGV[3]
local format = meta('f')
if not format then
  if ARGV[2] == '0' or ARGV[2] == 'opened' then return {'EMPTY'} end
  return {'STATE_LOST', '0', '0'}
end
if format ~= FORMAT then return {'FORMAT', format} end

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
if version > 0 and (not uid or not is_there(version, uid)) then return missing(version) end
if held and version == opened and uid ~= opened_uid then return {'FENCED', 'pinned', opened_uid} end

local cached = {}
for i = 4, #ARGV, 2 do cached[delta_field(ARGV[i], ARGV[i + 1])] = true end
local reply = {'OK', text(version), uid, held and '1' or '0', text(opened), meta('w'), '0', '-'}
local at, at_uid = version, uid
local delta_name = delta_field(at, at_uid)
while at > 0 and not cached[delta_name] do
  local snapshot_name = snapshot_field(at, at_uid)
  local found = redis.call('HMGET', META, delta_name, snapshot_name)
  local delta, snapshot = found[1], found[2]
  local parent = delta and ref(delta)
  local parent_name = delta and delta_field(at - 1, parent)
  if snapshot and not (delta and cached[parent_name]) then
    reply[#reply + 1] = snapshot_name
    reply[#reply + 1] = snapshot
    at, at_uid = 0, '-'
  elseif delta then
    reply[#reply + 1] = delta_name
    reply[#reply + 1] = delta
    if has_flag(delta, 'c') then
      at, at_uid = 0, '-'
    else
      at, at_uid, delta_name = at - 1, parent, parent_name
    end
  else
    return missing(at)
  end
end
reply[7], reply[8] = text(at), at_uid

if held and version > opened then
  redis.call('HSET', META, 'r', run, 'o', text(version), 'ou', uid, 'l', text(version), 'lu', uid)
  redis.call('HDEL', META, 'b', 'k')
end
return reply
