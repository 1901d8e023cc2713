--#include lineage
--#include room
--#include hot
-- Enters a hot run: what all versions since a base have changed, merged, in the place of their deltas for readers that ask for it.
-- KEYS  1 P:m  2 key of the run  3 key under which its blocks are staged
-- ARGV  1 version  2 uid  3 writer  4 version of the base  5 its uid  6 manifest entry
--       Without ARGV it drops all hot runs.
-- Reply OK [dropped] · ALREADY · INCOMPLETE found · STALE (nobody wants it any more) · ROOM bytes share · FORMAT found
-- Keeps: a hot run of (version, uid) stands on a base of its own lineage that is there, and has all its blocks. It is not above the
--        opened version, so no attempt has one. A partition has one run, and only while it is bounded. Dropping it changes
--        no version.
--        Every reply but OK and FORMAT leaves no staged key.
local format = meta('f')
if format and not FORMATS[format] then return {'FORMAT', format} end
if #ARGV == 0 then
  local all = format and runs_of(function() return true end) or {}
  drop_runs(all)
  return {'OK', text(#all)}
end
local version, uid, writer, base_version, entry = tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[6]
local field, value = run_field(version, uid), ARGV[4] .. ' ' .. ARGV[5] .. ' ' .. entry
local ident = 'r:' .. ARGV[1] .. ':' .. writer

local function answer(reply)
  redis.call('UNLINK', KEYS[3])
  return reply
end

if not format then return answer({'STALE'}) end
if meta(field) == value then return answer({'ALREADY'}) end
local share, bytes = bound()
local on_lineage = base_version > 0 and base_version < version and walk(number('o'), meta('ou'), version) == uid
  and walk(version, uid, base_version) == ARGV[5]
if not share or not on_lineage or not alone_at(base_version, ARGV[5]) then return answer({'STALE'}) end
local blocks = redis.call('HLEN', KEYS[3])
if blocks == 0 or blocks ~= tonumber(match(entry, '^%S+ %S+ %S+ (%d+)')) then return answer({'INCOMPLETE', text(blocks)}) end
local before = runs_of(function() return true end)
local more = uncounted('n:' .. ident, entry)
local refused = more > 0 and take_room(share, bytes, more, 'n:' .. ident)
if refused then return answer(refused) end

drop_runs(before)
redis.call('HSET', META, field, value)
redis.call('HDEL', META, 'h:n:' .. ident)
redis.call('RENAME', KEYS[3], KEYS[2])
redis.call('PERSIST', KEYS[2])
return {'OK'}
