-- Stores the version that a batch looks up; two tasks that choose concurrently get the same choice.
-- KEYS  1 the key of a look-up
-- ARGV  1 choice that the caller found ('' for none)   2 choice of the caller   3 ms to keep it
-- Reply the stored choice
-- Keeps: a concurrent choice is never replaced.
local now = redis.call('GET', KEYS[1]) or ''
if now ~= ARGV[1] then return {now} end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return {ARGV[2]}
