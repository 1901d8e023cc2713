--#include lineage
-- Take the partition for a run that is about to write on top of (version, uid).
-- KEYS  1 P:m
-- ARGV  1 run id  2 epoch  3 '1' if the driver registered the run, else '0'  4 version  5 uid
--       6 retained versions  7 ttl in ms of dropped keys  8 checkpoint format version (1 or 2)  9 keep ms (0 = for ever)
-- A version above 0 with uid '-' is one that is not there: the run begins there with nothing, and commits a complete delta.
-- Reply OK dropped · REOPEN opened · FENCED opened|pinned|epoch|unregistered|replaced found
--       STATE_LOST latest floor · VERSION_EXPIRED floor latest · FORMAT found
-- Keeps: the epoch of a partition only rises; a timeline is dropped only while the epoch is raised, in format 2 only
--        by a driver's version 0; a run that no driver registered goes on from the living timeline or not at all.

-- Whether the holding run published it last, or beside what it published last.
local function is_newest(version, uid)
  if version ~= number('l') then return false end
  local siblings = ' ' .. (meta('b') or '') .. ' '
  return uid == meta('lu') or string.find(siblings, ' ' .. uid .. ' ', 1, true) ~= nil
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
  return {'OK', '0'}
end
if format ~= FORMAT then return {'FORMAT', format} end

local opened = number('o')
if meta('r') == run then
  if version < opened then return {'FENCED', 'opened', text(opened)} end
  if version > opened and not begins then return {'REOPEN', text(opened)} end
  if version > opened then
    redis.call('HSET', META, 'o', text(version), 'ou', '-', 'l', text(version), 'lu', '-')
    redis.call('HDEL', META, 'b')
    return {'OK', '0'}
  end
  if meta('ou') ~= uid then return {'FENCED', 'pinned', meta('ou')} end
  return {'OK', '0'}
end
if epoch <= number('e') then return {'FENCED', 'epoch', meta('e')} end
if ARGV[3] ~= '1' and version < opened then return {'FENCED', 'unregistered', text(opened)} end
if version > 0 and not begins then
  local there = is_there(version, uid)
  local found = there and uid
  -- Also in the first batch after a switch to format 2, which had no uid to ask for.
  if ARGV[8] == '1' or not there and meta('c') ~= '2' then found = walk(number('l'), meta('lu'), version) end
  -- Another attempt of the version may have taken the place of the one that was read: then nothing is lost.
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

local abandoned = {}
if ARGV[8] == '1' or (version == 0 and ARGV[3] == '1') then
  local all = redis.call('HGETALL', META)
  for i = 1, #all, 2 do
    local at = string.match(all[i], '^[ds]:(%d+):')
    if at and (tonumber(at) > version) then abandoned[#abandoned + 1] = i end
  end
  here(all, abandoned)
  for _, i in ipairs(abandoned) do drop(all[i], all[i + 1], ARGV[7]) end
end
local dropped = #abandoned
if version == 0 then redis.call('HSET', META, 'w', '0') end
redis.call('HDEL', META, 'b')
redis.call('HSET', META, 'e', ARGV[2], 'r', run, 'o', text(version), 'ou', uid,
  'l', text(version), 'lu', uid, 'n', ARGV[6], 'c', ARGV[8])
touch()
return {'OK', text(dropped)}
