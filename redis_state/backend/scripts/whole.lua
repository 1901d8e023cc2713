-- Finds segments that are not whole, or whose expiry is not that of the manifest. Changes nothing.
-- KEYS  1 P:m  2… keys of segments
-- ARGV  the number of blocks of each segment
-- Reply OK, then of each segment found its place among the segments, its blocks, and its expiry as PTTL gives it
-- Keeps: each segment is compared with the manifest's expiry of the same moment.
local lasts = redis.call('PTTL', KEYS[1]) == -1
local found = {'OK'}
for i = 2, #KEYS do
  local blocks, expiry = redis.call('HLEN', KEYS[i]), redis.call('PTTL', KEYS[i])
  if blocks ~= tonumber(ARGV[i - 1]) or (expiry == -1) ~= lasts then
    for _, word in ipairs({i - 1, blocks, expiry}) do found[#found + 1] = string.format('%.0f', word) end
  end
end
return found
