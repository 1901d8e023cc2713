--#include lineage
--#include room
-- Brings a segment back from a file, after `stage` has sent all its blocks.
-- KEYS  1 P:m  2 P:f  3 key of the segment
-- ARGV  1 its manifest field  2 its entry  3 its place
-- Reply OK · GONE (it is not there, or has another place) · INCOMPLETE found · FORMAT found
--       ROOM bytes share (it does not fit into the partition's share; nothing was changed)
-- Keeps: a segment leaves its file only when Redis has all its blocks, and has room for them.
local format = meta('f')
if not format then return {'GONE'} end
if not FORMATS[format] then return {'FORMAT', format} end
local ident = ident_of(ARGV[1], ARGV[2])
local is_named = meta(ARGV[1]) == ARGV[2]
local is_aside = meta('z:' .. ident) == ARGV[1] .. ' ' .. ARGV[2]
if meta('a:' .. ident) ~= ARGV[3] or not (is_named or is_aside) then return {'GONE'} end
local blocks = redis.call('HLEN', KEYS[3])
if blocks ~= tonumber(match(ARGV[2], '^%S+ %S+ %S+ (%S+)')) then return {'INCOMPLETE', text(blocks)} end
local share, bytes = bound()
local more = share and uncounted(ident, ARGV[2]) or 0
local refused = more > 0 and take_room(share, bytes, more, ident)
if refused then return refused end
displace(ident)
redis.call('HDEL', META, 'h:' .. ident)
if is_named then keep(KEYS[3], '0') else redis.call('PEXPIRE', KEYS[3], ASIDE_MS) end
settle_format()
return {'OK'}
