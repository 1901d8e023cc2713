--#include lineage
--#include room
--#include hot
--#include binding
-- Acquires the partition for a run that is about to write on top of (version, uid).
-- KEYS  1 P:m
-- ARGV  1 run id  2 epoch  3 '1' if the driver registered the run, else '0'  4 version  5 uid
--       6 retained versions  7 ttl in ms of dropped keys  8 checkpoint format version (1 or 2)  9 keep ms (0 = for ever)
--       10 opened version and run of an UNSURE reply, sent once the caller has seen that Spark's commit log has neither
--          the batch of its version nor a newer one; '' before; '-' if there is no log: then the newest run is right, and
--          there are no contenders. The version alone is not enough: another run may have gone back and come as far again.
--       11 share of the partition's memory in bytes, 0 for none; absent: it stays as it is
-- A version above 0 with uid '-' does not exist: the run starts there empty, and commits a complete delta.
-- Reply OK dropped · REOPEN opened · UNSURE opened run (read the log, then send again with ARGV 10)
--       FENCED opened|pinned|unregistered|replaced found | FENCED epoch found run
--       STATE_LOST latest floor · VERSION_EXPIRED floor latest · FORMAT found
-- Keeps: the epoch of a partition only rises. Only a driver's run that goes back drops a timeline that was opened, in
--        format 2 only to version 0. At the opened version or right above it, the previous run becomes a contender, whose
--        attempts stay. A run that no driver registered continues the living timeline or is refused.
--        The time of an attempt at the next version outlives the attempt, for the batch that is run again.
--        Rows of an ephemeral run lose their expiry once a run that is not ephemeral continues from them.
local CONTENDERS_MAX = 4

-- Attempts that the holding run has published right above the opened version, the latest one last.
local function newest()
  local uids = {}
  if number('l') == number('o') + 1 then
    for one in string.gmatch(meta('b') or meta('lu'), '%S+') do uids[#uids + 1] = one end
  end
  return uids
end

-- Returns whether the holding run published this attempt last, or as a sibling of its last one.
local function is_newest(version, uid)
  if version ~= number('l') then return false end
  return uid == meta('lu') or has(newest(), uid)
end

-- The contenders from now on, if this run takes the partition at (version, uid).
local function contenders_at(version, uid)
  local opened, holder = number('o'), {run = meta('r'), uids = newest()}
  local all = contenders()
  if holder.run ~= '' then all[#all + 1] = holder end
  if version == opened and uid == meta('ou') then return all end
  if version == opened + 1 then
    for _, one in ipairs(all) do
      if has(one.uids, uid) then return {{run = one.run, uids = {}}} end
    end
  end
  return {}
end

-- Bounds the partition's memory, or ends that, as the run wants it.
local function set_share()
  if ARGV[11] == '0' then
    unbind()
  elseif ARGV[11] and redis.call('PTTL', META) < 0 then
    bind(tonumber(ARGV[11]))
  end
end

local run, epoch, version, uid = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[4]), ARGV[5]
local begins = version > 0 and uid == '-'
local format = meta('f')
if not format then
  if version > 0 and not begins then return {'STATE_LOST', '0', '0'} end
  redis.call('HSET', META, 'f', FORMAT, 'e', ARGV[2], 'r', run, 'o', text(version), 'ou', '-',
    'l', text(version), 'lu', '-', 'n', ARGV[6], 'w', '0', 'c', ARGV[8])
  touch()
  keep(META, ARGV[9])
  set_share()
  return {'OK', '0'}
end
if not FORMATS[format] then return {'FORMAT', format} end

local opened = number('o')
local held = meta('r') == run
if held or (contender(run) and not (begins and version > opened)) then
  if version < opened then return {'FENCED', 'opened', text(opened)} end
  if version > opened and not begins then return {'REOPEN', text(opened)} end
  if version > opened then
    redis.call('HSET', META, 'o', text(version), 'ou', '-', 'l', text(version), 'lu', '-')
    redis.call('HDEL', META, 'b', 'k', 'u')
    return {'OK', '0'}
  end
  if meta('ou') ~= uid then return {'FENCED', 'pinned', meta('ou')} end
  return {'OK', '0'}
end
if epoch <= number('e') then return {'FENCED', 'epoch', meta('e'), meta('r')} end
if ARGV[3] ~= '1' and version < opened then return {'FENCED', 'unregistered', text(opened)} end
if version > 0 and not begins then
  local there = is_there(version, uid)
  local found = there and uid
  -- Also in the first batch after a switch to format 2, whose caller has no uid yet.
  if ARGV[8] == '1' or not there and meta('c') ~= '2' then
    found = (ARGV[3] == '1' or not there) and found_by_version(version) or walk(number('l'), meta('lu'), version)
  end
  -- Another attempt of the version may have replaced the one that was read: then nothing is lost.
  if found ~= uid and (there or found and is_there(version, found)) then
    return {'FENCED', 'replaced', found or '-'}
  end
  if not there then return missing(version) end
end
if ARGV[3] ~= '1' and (ARGV[8] == '2' or meta('c') == '2') then
  local from_living = begins or (version == opened and uid == meta('ou')) or is_newest(version, uid)
  local living = ARGV[8] == '2' and from_living
  if not living then return {'FENCED', 'unregistered', text(opened)} end
end

-- Another run has continued from here, or is about to: this is a restart that goes back, or one that came too late.
local logged = ARGV[10] ~= '-'
local before = logged and contenders_at(version, uid) or {}
local unsure = logged and version < opened
for _, one in ipairs(before) do unsure = unsure or #one.uids > 0 end
if unsure and ARGV[10] ~= text(opened) .. ' ' .. meta('r') then return {'UNSURE', text(opened), meta('r')} end

-- Manifest fields to drop: those above a rewind, or the attempts of the oldest contender if there are too many.
local gone = {}
local oldest = #before > CONTENDERS_MAX and table.remove(before, 1)
local leaves = version < opened or not logged
if leaves and (ARGV[8] == '1' or (version == 0 and ARGV[3] == '1')) then
  local all = redis.call('HGETALL', META)
  for i = 1, #all, 2 do
    local at = string.match(all[i], '^[ds]:(%d+):')
    if at and tonumber(at) > version then gone[#gone + 1] = all[i] end
  end
elseif oldest and ARGV[8] == '1' then
  for _, one in ipairs(oldest.uids) do
    gone[#gone + 1] = delta_field(version + 1, one)
    gone[#gone + 1] = snapshot_field(version + 1, one)
  end
end
local entries, at = {}, {}
for _, field in ipairs(gone) do
  local entry = meta(field)
  if entry then
    at[#at + 1] = #entries + 1
    entries[#entries + 1] = field
    entries[#entries + 1] = entry
  end
end
here(entries, at)
-- The end of the bound drops all of them.
local ends = ARGV[11] == '0'
local runs = format ~= FORMAT and (leaves or ends) and runs_of(function(above) return ends or above > version end) or {}
-- The attempts that are there are dropped now, or not found by version any more.
local time = time_above(version, uid)
if time then redis.call('HSET', META, 'tv', text(version + 1) .. ' ' .. uid .. ' ' .. time)
else redis.call('HDEL', META, 'tv') end
for _, i in ipairs(at) do drop(entries[i], entries[i + 1], ARGV[7]) end
drop_runs(runs)
if version == 0 then redis.call('HSET', META, 'w', '0') end
if tonumber(ARGV[9]) == 0 and redis.call('PTTL', META) > 0 then
  -- Keeps the rows that an ephemeral run wrote.
  local all = redis.call('HGETALL', META)
  for i = 1, #all, 2 do
    local is_here = string.match(all[i], '^[ds]:%d+:') and not file_of(ident_of(all[i], all[i + 1]))
    if is_here then redis.call('PERSIST', segment_key(all[i], all[i + 1])) end
  end
  redis.call('PERSIST', META)
end
redis.call('HDEL', META, 'b', 'u')
set_contenders(before)
redis.call('HSET', META, 'e', ARGV[2], 'r', run, 'o', text(version), 'ou', uid,
  'l', text(version), 'lu', uid, 'n', ARGV[6], 'c', ARGV[8])
touch()
set_share()
return {'OK', text(#at)}
