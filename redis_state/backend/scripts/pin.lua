--#include lineage
--#include pins
-- Pins the segments of a version for an owner: a fork, or a name that was given to the version.
-- KEYS  1 P:m
-- ARGV  1 owner  2 kind  3 version  4 uid, or '' for the one on the living timeline  5 ms until the pin expires (0 = never)
--       6… idents, newest first, of a pin that was lost with the partition: these segments and no others
-- Reply OK version uid retained checkpoint-format [field entry place]…, newest first
--       OTHER version uid (the owner pins another version) · LIMIT owners · EPHEMERAL · STATE_LOST latest floor · VERSION_EXPIRED floor latest · FORMAT found
-- Keeps: a pin names segments, not a version: another base may come for a version. A second call keeps the segments and
--        sets the expiry; if one of them is gone, nothing changes. A permanent pin of a fork stays permanent: a call
--        with an expiry may arrive late.
local OWNERS_MAX = 64
local owner, version, uid = ARGV[1], tonumber(ARGV[3]), ARGV[4]
local format = meta('f')
if not format then return {'STATE_LOST', '0', '0'} end
if not FORMATS[format] then return {'FORMAT', format} end
if redis.call('PTTL', META) > 0 and not meta('g') then return {'EPHEMERAL'} end

local at, at_uid, before, _, idents = pin_of(owner)
local lasts = at and before == 0 and ARGV[2] == 'fork'
local found = {}
if at then
  if at ~= version or uid ~= '' and uid ~= at_uid then return {'OTHER', text(at), at_uid} end
  uid, found = at_uid, by_ident(idents)
  if not found then return missing(version) end
else
  if uid == '' then uid = version == 0 and '-' or found_by_version(version) end
  if not uid then return missing(version) end
  at, at_uid, idents = version, uid, {}
  for i = 6, #ARGV do idents[#idents + 1] = ARGV[i] end
  if #idents > 0 then
    found = by_ident(idents)
    if not found then return missing(version) end
    at = 0
  end
  while at > 0 do
    local field = snapshot_field(at, at_uid)
    local entry = meta(field)
    local is_alone = entry
    if not entry then
      field = delta_field(at, at_uid)
      entry = meta(field)
      if not entry then return missing(at) end
      is_alone = has_flag(entry, 'c')
    end
    local ident = ident_of(field, entry)
    idents[#idents + 1] = ident
    found[#found + 1] = {field, entry, meta('a:' .. ident) or ''}
    if is_alone then break end
    at, at_uid = at - 1, ref(entry)
  end
  for _, ident in ipairs(idents) do
    local _, owners = string.gsub(meta('y:' .. ident) or '', '%S+', '')
    if owners >= OWNERS_MAX then return {'LIMIT', text(owners)} end
  end
  for _, ident in ipairs(idents) do
    local owners = meta('y:' .. ident)
    redis.call('HSET', META, 'y:' .. ident, owners and owners .. ' ' .. owner or owner)
  end
end
local expires = not lasts and tonumber(ARGV[5]) > 0 and now_ms() + tonumber(ARGV[5]) or 0
local words = {text(version), uid, text(expires), ARGV[2]}
for _, ident in ipairs(idents) do words[#words + 1] = ident end
redis.call('HSET', META, 'f', '2', 'x:' .. owner, table.concat(words, ' '))
return answer({'OK', text(version), uid, meta('n'), meta('c') or '1'}, found)
