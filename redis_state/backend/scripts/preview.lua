--#include lineage
-- Sets the preview of a partition: rows that an attempt has changed so far, for readers (docs/format.md, section 16).
-- KEYS  1 P:m  2… keys of the slices, newest first
-- ARGV  1 run id   2 version (the parent's)   3 parent uid   4 uid of the attempt   5 number of this preview, rising within the attempt
--       6 `<uid> <number>` of the preview that the caller knows of, or '' for none   7 ms until the preview expires
--       8 ms until its slices expire   9… pairs (number of the slice, its entry), in the order of KEYS
-- Reply OK · OTHER known valid (`<uid> <number>` of the preview that is there, or ''; valid is 1 if readers would take it; the
--       number of an attempt that ended is `-`) · INCOMPLETE ident · ENDED (the version was committed) · FENCED epoch found run
--       FENCED opened found · FORMAT found · STATE_LOST latest floor
-- Keeps: a preview replaces exactly the one that its caller knows of, so a call that arrives late changes nothing. It has
--        the rows of one attempt of the holding run, on top of the opened version, with all blocks. An attempt that ended
--        has none.
local run, version, parent, uid = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local format = meta('f')
if not format then return {'STATE_LOST', '0', '0'} end
if not FORMATS[format] then return {'FORMAT', format} end
if meta('r') ~= run then return {'FENCED', 'epoch', meta('e'), meta('r')} end
if number('o') ~= version or meta('ou') ~= parent then return {'FENCED', 'opened', meta('o')} end
if number('l') > version then return {'ENDED'} end

local known, valid = preview_known(), preview_valid() and '1' or '0'
if known ~= ARGV[6] and known ~= uid .. ' ' .. ARGV[5] then return {'OTHER', known, valid} end

local words = {text(version + 1), uid, ARGV[5], parent, meta('e'), text(now_ms() + tonumber(ARGV[7]))}
local slices = {table.concat(words, ' ')}
for i = 2, #KEYS do
  local slice, entry = ARGV[5 + 2 * i], ARGV[6 + 2 * i]
  if redis.call('HLEN', KEYS[i]) ~= tonumber(match(entry, '^%S+ %S+ %S+ (%S+)')) then return {'INCOMPLETE', sub(KEYS[i], #PREFIX + 2)} end
  slices[i] = slice .. ' ' .. entry
end
for i = 2, #KEYS do redis.call('PEXPIRE', KEYS[i], ARGV[8]) end
redis.call('HSET', META, 'u', table.concat(slices, '|'))
return {'OK'}
