-- Shared by the scripts of pins (docs/format.md, section 14).

-- Finds segments by their idents, set aside or not: triples of field, entry and place. Returns nil and the ident that is gone.
local function by_ident(idents)
  local snapshots = {}
  local all = redis.call('HGETALL', META)
  for i = 1, #all, 2 do
    if string.match(all[i], '^s:%d+:') then snapshots[ident_of(all[i], all[i + 1])] = all[i] end
  end
  local found = {}
  for _, ident in ipairs(idents) do
    local field, entry = string.match(meta('z:' .. ident) or '', '^(%S+) (.+)$')
    if not field then
      field = snapshots[ident] or ident
      entry = meta(field)
    end
    if not entry then return nil, ident end
    found[#found + 1] = {field, entry, meta('a:' .. ident) or ''}
  end
  return found
end

-- Returns what an owner pins: version, uid, ms when it expires, kind, and the idents, newest first; nil without a pin.
local function pin_of(owner)
  local version, uid, expires, kind, rest = string.match(meta('x:' .. owner) or '', '^(%d+) (%S+) (%d+) (%S+) ?(.*)$')
  if not version then return nil end
  local idents = {}
  for ident in string.gmatch(rest, '%S+') do idents[#idents + 1] = ident end
  return tonumber(version), uid, tonumber(expires), kind, idents
end

local function answer(reply, segments)
  for _, one in ipairs(segments) do
    for i = 1, 3 do reply[#reply + 1] = one[i] end
  end
  return reply
end
