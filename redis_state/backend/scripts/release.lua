-- Releases a key that one process holds: a claim, the place of an instance, or the gen of a checkpoint.
-- KEYS  1 {T rs:<gen>}:i:…, P:x or {T rs}:g:…
-- ARGV  1 expected value of the key  2 0 to remove it, else ms for which it stays, empty
-- Reply OK · KEPT (the key has another value by now)
-- Keeps: a value that another process wrote meanwhile is not touched.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return {'KEPT'} end
if tonumber(ARGV[2]) > 0 then
  redis.call('SET', KEYS[1], '', 'PX', ARGV[2])
else
  redis.call('UNLINK', KEYS[1])
end
return {'OK'}
