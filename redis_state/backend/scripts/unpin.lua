--#include lineage
--#include pins
-- Ends the pin of an owner. Retention later drops the set-aside segments that no other owner pins.
-- KEYS  1 P:m
-- ARGV  1 owner  2 '' or the expiry that the caller has read
-- Reply OK number of segments without a pin · NONE · RENEWED (it got another expiry meanwhile) · FORMAT found
local format = meta('f')
if not format then return {'NONE'} end
if not FORMATS[format] then return {'FORMAT', format} end
local owner = ARGV[1]
local version, _, expires, _, idents = pin_of(owner)
if not version then return {'NONE'} end
if ARGV[2] ~= '' and tonumber(ARGV[2]) ~= expires then return {'RENEWED'} end
local free = 0
for _, ident in ipairs(idents) do
  local rest = {}
  for one in string.gmatch(meta('y:' .. ident) or '', '%S+') do
    if one ~= owner then rest[#rest + 1] = one end
  end
  if #rest > 0 then
    redis.call('HSET', META, 'y:' .. ident, table.concat(rest, ' '))
  else
    redis.call('HDEL', META, 'y:' .. ident)
    free = free + 1
  end
end
redis.call('HDEL', META, 'x:' .. owner)
settle_format()
return {'OK', text(free)}
