--#include room
-- Stores blocks of a segment that no manifest names yet; without fields, renews the expiry of an open write set.
-- KEYS  1 P:m  2 key of the segment
-- ARGV  1 its manifest field  2 ttl in ms  3… pairs (field, block)
--       last, behind the pairs, so that the number of arguments is odd: 'b' brings back what a file holds
-- Reply OK · PUBLISHED (nothing was done) · ROOM bytes share (they do not fit into the partition's share; nothing was done)
-- Keeps: a segment that was published never gets an expiry and never changes, however late this call arrives, whether it is
--        in the manifest or set aside, unless it comes back from a file. No block takes the partition above its share.
local ident = string.sub(KEYS[2], #KEYS[1])
local place = redis.call('HGET', KEYS[1], 'a:' .. ident)
local comes_back = #ARGV % 2 == 1 and place and string.find(place, '^f ')
if not comes_back then
  local entry = redis.call('HGET', KEYS[1], ARGV[1])
  local head = entry and string.match(ARGV[1], '^s:%d+:')
  -- A snapshot of another checkpoint has a key there, and gives way to this one.
  local other = head and redis.call('HGET', KEYS[1], 'a:' .. head .. string.match(entry, '^%S+'))
  local is_foreign = other and string.find(other, '^p ')
  if entry and not is_foreign or redis.call('HEXISTS', KEYS[1], 'z:' .. ident) == 1 then return {'PUBLISHED'} end
end
local share, bytes = bound()
if share and #ARGV > 3 then
  local more = 0
  for i = 3, #ARGV - 1, 2 do
    -- An attempt never sends other bytes for a field.
    if redis.call('HEXISTS', KEYS[2], ARGV[i]) == 0 then more = more + cost(1, #ARGV[i + 1]) end
  end
  if redis.call('EXISTS', KEYS[2]) == 0 then
    redis.call('HDEL', KEYS[1], 'h:' .. ident)
    more = more + 300
  end
  local refused = more > 0 and take_room(share, bytes, more, ident)
  if refused then return refused end
  redis.call('HSET', KEYS[1], 'h:' .. ident, string.format('s %d', loose_bytes(ident) + more))
end
for i = 3, #ARGV - 1, 2 do redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return {'OK'}
