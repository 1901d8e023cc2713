-- Remember which version a batch looks up; of two tasks that choose at once both get one choice.
-- KEYS  1 the key of a look-up
-- ARGV  1 what the caller found there ('' for nothing)   2 what it chose   3 ms to remember it
-- Reply what is remembered now
-- Keeps: a choice that came in between counts.
local now = redis.call('GET', KEYS[1]) or ''
if now ~= ARGV[1] then return {now} end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return {ARGV[2]}
