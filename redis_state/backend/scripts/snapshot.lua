--#include lineage
--#include room
--#include hot
-- Publishes a staged snapshot of (version, uid) in the manifest.
-- KEYS  1 P:m  2 key of the snapshot  3 key under which its blocks are staged
-- ARGV  1 version  2 uid  3 writer  4 blocks  5 manifest entry  6 keep ms (0 = for ever)
--       7 place, of a snapshot whose blocks are in a file  8 bytes of the file
-- Reply OK · ALREADY · EXISTS (another writer was first) · STALE · INCOMPLETE found · STATE_LOST
--       ROOM bytes share (it does not fit into the partition's share) · GONE (its file is condemned or unknown) · FORMAT found
-- Keeps: only versions that the opened version descends from, and attempts right above it, get a snapshot, so no loadable
--        version changes; publish drops the snapshot with the attempt that it replaces. One of another checkpoint (a fork has
--        those of its parent) gives way to the fork's own. Hot runs of the version and of older ones go.
--        No staged chunk, however late it arrives, touches a key that was entered: it has another name.
--        Every reply but FORMAT leaves no staged key.
local version, uid, writer = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local field = snapshot_field(version, uid)

-- A snapshot that was entered before keeps its key, whether it is in the manifest or set aside.
local function answer(reply)
  redis.call('UNLINK', KEYS[3])
  return reply
end

local format = meta('f')
if format and not FORMATS[format] then return {'FORMAT', format} end
local entry = meta(field)
local is_filed = format and format ~= FORMAT and file_of('s:' .. text(version) .. ':' .. writer)
if entry and ref(entry) == writer then
  if not is_filed then keep(KEYS[2], ARGV[6]) end
  return answer({'ALREADY'})
end
if entry and not match(meta('a:' .. ident_of(field, entry)) or '', '^p ') then return answer({'EXISTS'}) end
if not format then return answer({'STATE_LOST'}) end
local function is_above()
  local delta = version == number('o') + 1 and meta(delta_field(version, uid))
  return delta and ref(delta) == meta('ou')
end
local on_lineage = walk(number('o'), meta('ou'), version) == uid or is_above()
if version == 0 or not on_lineage or not is_there(version, uid) then
  return answer({'STALE'})
end
local runs = format ~= FORMAT and runs_of(function(at) return at <= version end) or {}
local blocks, place = redis.call('HLEN', KEYS[3]), ARGV[7]
local ident = 's:' .. text(version) .. ':' .. writer
local file = place and match(place, '^f (%S+) ')
local state, _, segments = file_row(file or '')
if place then
  if state ~= ANNOUNCED and state ~= USED then return answer({'GONE'}) end
else
  if blocks ~= tonumber(ARGV[4]) then return answer({'INCOMPLETE', text(blocks)}) end
  local share, bytes = bound()
  -- What was staged without a look at the bound has not been counted yet.
  local more = share and uncounted('n:' .. ident, ARGV[5])
  local refused = share and more > 0 and take_room(share, bytes, more, 'n:' .. ident)
  if refused then return answer(refused) end
end
if entry then drop(field, entry, ASIDE_MS) end
drop_runs(runs)
redis.call('HSET', META, field, ARGV[5])
redis.call('HDEL', META, 'z:' .. ident, 'h:' .. ident, 'h:n:' .. ident)
if place then
  redis.call('HSET', META, 'a:' .. ident, place, 'f', '2')
  set_file(file, USED, segments + 1, ARGV[8])
  return answer({'OK'})
end
if blocks > 0 then redis.call('RENAME', KEYS[3], KEYS[2]) end
if not is_filed then keep(KEYS[2], ARGV[6]) end
return {'OK'}
