--#include runs
-- Registers a run of a query and gives it its epoch.
-- KEYS  1 {T rs:<gen>}:q
-- ARGV  1 run id  2 'd' if the driver asks, 'x' if an executor does  3 epoch to exceed, or 0
--       4 ttl in ms of a query that no partition was acquired for yet  5… pairs (field, value) to set; an existing `created` stays
-- Reply OK epoch d|x · FENCED newest-epoch (the run is not the newest and its epoch does not exceed ARGV[3]) · PURGED
-- Keeps: epochs of different runs differ and rise with the order of registration; a run keeps its epoch
--        unless a partition was found above it after a fail-over; a purged query gets no run.
local function register()
  local query, run, above = KEYS[1], 'run:' .. ARGV[1], tonumber(ARGV[3])
  if redis.call('HEXISTS', query, 'purged') == 1 then return {'PURGED'} end
  local newest = tonumber(redis.call('HGET', query, 'epoch') or '0')
  local known = redis.call('HGET', query, run)
  local epoch, source
  if known then
    epoch, source = string.match(known, '^(%d+) (%a)$')
    epoch = tonumber(epoch)
    if source == 'd' or ARGV[2] == 'd' then source = 'd' else source = 'x' end
  end
  if not known or epoch <= above then
    if known and epoch < newest then return {'FENCED', string.format('%d', newest)} end
    local time = redis.call('TIME')
    local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
    epoch = math.max(newest + 1, above + 1, now_ms)
    source = source or ARGV[2]
  end
  if redis.call('EXISTS', query) == 0 then
    redis.call('HSET', query, 'f', '1')
    if tonumber(ARGV[4]) > 0 then redis.call('PEXPIRE', query, ARGV[4]) end
  end
  local text = string.format('%d', epoch)
  redis.call('HSET', query, run, text .. ' ' .. source)
  if epoch > newest then redis.call('HSET', query, 'epoch', text) end
  for i = 5, #ARGV, 2 do redis.call(ARGV[i] == 'created' and 'HSETNX' or 'HSET', query, ARGV[i], ARGV[i + 1]) end
  return {'OK', text, source}
end

local reply = register()
if reply[1] == 'OK' then forget_old_runs(KEYS[1]) end
return reply
