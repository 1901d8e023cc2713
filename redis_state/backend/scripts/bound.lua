--#include lineage
--#include room
--#include hot
--#include binding
-- Bounds the memory of a partition, or ends that.
-- KEYS  1 P:m
-- ARGV  1 share in bytes; 0 ends the bound
-- Reply OK bytes · EMPTY · EXPIRES (an ephemeral checkpoint has no bound) · FORMAT found
-- Keeps: nothing leaves Redis by this; a partition that has more than its share takes no blocks until some have left.
local format = meta('f')
if not format then return {'EMPTY'} end
if not FORMATS[format] then return {'FORMAT', format} end
if ARGV[1] == '0' then
  unbind()
  return {'OK', '0'}
end
if redis.call('PTTL', META) > 0 then return {'EXPIRES'} end
return {'OK', text(bind(tonumber(ARGV[1])))}
