--#include lineage
-- Enters the places of segments that a file holds; their blocks leave Redis.
-- KEYS  1 P:m  2 P:f
-- ARGV  1 file  2 its bytes  3 ttl in ms of the keys that leave, 0 in a bounded partition  4… triples (field, entry, place)
-- Reply OK placed · GONE (the file is condemned or unknown, or no segment is there as planned) · EXPIRES · FORMAT found
-- Keeps: a segment gets a place only as it was planned, at or below the opened version or set aside, and only in a file that
--        nobody may delete. The place and the expiry of the key are one step, so a server that goes back has one or the other.
local format = meta('f')
if not format then return {'GONE'} end
if not FORMATS[format] then return {'FORMAT', format} end
if redis.call('PTTL', META) > 0 then return {'EXPIRES'} end
local state, _, segments = file_row(ARGV[1])
if state ~= ANNOUNCED and state ~= USED then return {'GONE'} end

local planned, at = {}, {}
for i = 4, #ARGV, 3 do
  local field, entry = ARGV[i], ARGV[i + 1]
  local is_confirmed = tonumber(match(field, ':(%d+):')) <= number('o')
  local is_there = meta(field) == entry and is_confirmed or meta('z:' .. ident_of(field, entry)) == field .. ' ' .. entry
  if is_there then
    at[#at + 1] = #planned + 1
    for j = 0, 2 do planned[#planned + 1] = ARGV[i + j] end
  end
end
here(planned, at)
local placed, new = 0, 0
local ttl_ms = is_bounded() and 0 or ARGV[3]
for _, i in ipairs(at) do
  local ident = ident_of(planned[i], planned[i + 1])
  local before = meta('a:' .. ident)
  if not before then
    redis.call('HSET', META, 'a:' .. ident, planned[i + 2])
    -- Readers under way find the place; a bounded partition needs the room at once.
    redis.call('PEXPIRE', PREFIX .. ':' .. ident, ttl_ms)
    new = new + 1
  end
  if not before or before == planned[i + 2] then placed = placed + 1 end
end
if placed == 0 then return {'GONE'} end
if new > 0 then
  set_file(ARGV[1], USED, segments + new, ARGV[2])
  redis.call('HSET', META, 'f', '2')
end
return {'OK', text(placed)}
