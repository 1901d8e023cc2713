--#include lineage
-- Forgets a condemned file, after it was deleted.
-- KEYS  1 P:m  2 P:f
-- ARGV  1 file
-- Reply OK · KEPT (it is not condemned, or unknown)
-- Keeps: Redis knows a file until it is gone.
if file_row(ARGV[1]) ~= CONDEMNED then return {'KEPT'} end
redis.call('HDEL', FILES, ARGV[1])
return {'OK'}
