-- Counts an error of a task.
-- KEYS  1 {T rs:<gen>}:t
-- ARGV  1 error, operator and store, joined by `:`  2 ttl in ms
-- Reply OK
-- Keeps: the hash is only for display, and expires when nothing was counted for the ttl.
local count = tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or '0') or 0
redis.call('HSET', KEYS[1], ARGV[1], string.format('%d', count + 1))
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {'OK'}
