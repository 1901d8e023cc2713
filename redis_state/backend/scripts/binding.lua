-- Shared by the scripts that set or end the bound of a partition: behind `lineage`, `room` and `hot` (docs/format.md, section 18).

-- Bounds the partition's memory; returns what it has.
local function bind(share)
  redis.call('HSET', META, 'f', '2')
  return recount(share, 0)
end

local function unbind()
  if not is_bounded() then return end
  drop_runs(runs_of(function() return true end))
  redis.call('HDEL', META, BOUND)
  local all = redis.call('HGETALL', META)
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, 2) == 'h:' then redis.call('HDEL', META, all[i]) end
  end
  settle_format()
end
