-- Notes that the driver of a run is alive.
-- KEYS  1 {T rs:<gen>}:q
-- ARGV  1 run id  2 version that the driver has copied, or absent
-- Reply OK · GONE (Redis knows no such run) · PURGED
-- Keeps: an expired query does not come back, and a purged one gets no sign of life.
if redis.call('HEXISTS', KEYS[1], 'run:' .. ARGV[1]) == 0 then return {'GONE'} end
if redis.call('HEXISTS', KEYS[1], 'purged') == 1 then return {'PURGED'} end
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local now = string.format('%d', now_ms)
redis.call('HSET', KEYS[1], 'seen', now)
if ARGV[2] then redis.call('HSET', KEYS[1], 'copied', ARGV[2] .. ' ' .. now) end
return {'OK'}
