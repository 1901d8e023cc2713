-- Included by other scripts: the runs in the hash of a query.

-- Keeps only the 64 newest runs, because a query may restart for years.
local function forget_old_runs(query)
  local runs = {}
  local all = redis.call('HGETALL', query)
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, 4) == 'run:' then
      runs[#runs + 1] = {all[i], tonumber(string.match(all[i + 1], '^%d+'))}
    end
  end
  table.sort(runs, function(a, b) return a[2] > b[2] end)
  for i = 65, #runs do redis.call('HDEL', query, runs[i][1]) end
end

