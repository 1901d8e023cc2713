--#include lineage
--#include room
-- Publishes a staged delta as the version after (version, parent). Runs inside MULTI/EXEC after the last stage.
-- KEYS  1 P:m  2 key of the delta  3 key under which all of its blocks are staged, if they are not under its own
-- ARGV  1 run id  2 epoch  3 version (the parent's)  4 parent uid  5 uid  6 blocks  7 manifest entry
--       8 ttl in ms of a replaced attempt  9 checkpoint format version (1 or 2)  10 keep ms (0 = for ever)
--       11 place, of a complete delta whose blocks are in a file  12 bytes of the file
-- Reply OK · ALREADY · TAKEN (other rows have this uid) · REOPEN opened · INCOMPLETE found
--       ROOM bytes share (its blocks do not fit into the partition's share; nothing was changed)
--       GONE (its file is condemned or unknown)
--       FENCED opened|pinned found | FENCED epoch found run · STATE_LOST latest floor · FORMAT found
-- Keeps: a published version is based on an existing version (a complete delta needs none), which its run has pinned, and
--        has all its blocks. ALREADY means exactly these rows: two copies of one process must not both succeed.
--        An attempt that a contender publishes stays its own, until it opens the attempt.
--        Every reply but OK, ALREADY, TAKEN, REOPEN and ROOM leaves no key of the delta, unless it was published and purged
--        since then.
--        Blocks that are staged under another name never touch a segment that was published. No reply leaves that name.
local run, epoch, version, parent, uid = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5]
local delta, staged = KEYS[2], KEYS[3]
local field = delta_field(version + 1, uid)

-- A delta that was published before, and set aside since then, keeps its key.
local function refuse(reply)
  if redis.call('HEXISTS', META, 'z:' .. field) == 0 then redis.call('UNLINK', delta) end
  return reply
end

-- Blocks that came with this transaction go with it, if they do not fit.
local refused
local format, published = meta('f'), meta(field)
local share, bytes
if format and format ~= FORMAT then share, bytes = bound() end
if staged and (published or redis.call('HEXISTS', META, 'z:' .. field) == 1) then
  redis.call('UNLINK', staged)
elseif staged and redis.call('EXISTS', staged) == 1 then
  refused = share and take_room(share, bytes, uncounted(field, ARGV[7]), field)
  if refused then
    redis.call('UNLINK', staged)
  else
    redis.call('RENAME', staged, delta)
    if share then redis.call('HSET', META, 'h:' .. field, string.format('s %d', entry_cost(ARGV[7]))) end
  end
end
if format and not FORMATS[format] then
  if published then return {'FORMAT', format} end
  return refuse({'FORMAT', format})
end
if published and published ~= ARGV[7] then return {'TAKEN'} end
-- What a file holds has left Redis: its key expires.
local is_filed = format and format ~= FORMAT and file_of(field)
if published then
  if not is_filed then keep(delta, ARGV[10]) end
  -- A WAIT after this transaction covers the writes of its connection: without a write it would return at once.
  redis.call('HSET', META, field, published)
  return {'ALREADY'}
end
if not format then return refuse({'STATE_LOST', '0', '0'}) end
local opened = number('o')
local rivals = contenders()
local rival
for _, one in ipairs(rivals) do rival = one.run == run and one or rival end
if meta('r') ~= run and not rival then
  if epoch > number('e') then return {'REOPEN', text(opened)} end
  return refuse({'FENCED', 'epoch', meta('e'), meta('r')})
end
if opened < version then return {'REOPEN', text(opened)} end
if opened > version then return refuse({'FENCED', 'opened', text(opened)}) end
if meta('ou') ~= parent then return refuse({'FENCED', 'pinned', meta('ou')}) end
if version > 0 and not has_flag(ARGV[7], 'c') and not is_there(version, parent) then return refuse(missing(version)) end
if refused then return refused end
local place = ARGV[11]
local file = place and match(place, '^f (%S+) ') or ''
local state, _, segments
if place then
  state, _, segments = file_row(file)
  if state ~= ANNOUNCED and state ~= USED then return refuse({'GONE'}) end
else
  local more = share and uncounted(field, ARGV[7]) or 0
  -- Blocks are missing, or came before the bound. What is there stays: the caller makes room, and sends the transaction again.
  refused = more > 0 and take_room(share, bytes, more, field)
  if refused then return refused end
  local blocks = redis.call('HLEN', delta)
  if blocks ~= tonumber(ARGV[6]) then return refuse({'INCOMPLETE', text(blocks)}) end
end

local siblings = number('l') == version + 1
local replaced
if ARGV[9] == '1' then replaced = rival and rival.uids[#rival.uids] or not rival and siblings and meta('lu') end
if replaced then
  local fields, at = {}, {}
  for _, name in ipairs({delta_field(version + 1, replaced), snapshot_field(version + 1, replaced)}) do
    local entry = meta(name)
    if entry then
      at[#at + 1] = #fields + 1
      fields[#fields + 1] = name
      fields[#fields + 1] = entry
    end
  end
  here(fields, at)
  for _, i in ipairs(at) do drop(fields[i], fields[i + 1], ARGV[8]) end
end
redis.call('HSET', META, field, ARGV[7])
redis.call('HDEL', META, 'z:' .. field, 'h:' .. field)
if place then
  if file_of(field) ~= file then
    displace(field)
    redis.call('UNLINK', delta)
    redis.call('HSET', META, 'a:' .. field, place, 'f', '2')
    set_file(file, USED, segments + 1, ARGV[12])
  end
  is_filed = true
end
if rival then
  if replaced then rival.uids = {} end
  rival.uids[#rival.uids + 1] = uid
  set_contenders(rivals)
else
  if ARGV[9] == '2' then
    local earlier = siblings and meta('b')
    redis.call('HSET', META, 'b', earlier and earlier .. ' ' .. uid or uid)
  end
  redis.call('HSET', META, 'l', text(version + 1), 'lu', uid)
  redis.call('HDEL', META, 'u')
end
if not is_filed then keep(delta, ARGV[10]) end
touch()
return {'OK'}
