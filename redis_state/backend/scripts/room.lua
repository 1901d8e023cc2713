-- Shared by the scripts that count the memory of a bounded partition (docs/format.md, section 18). KEYS[1] is always `P:m`.
-- Field `h` is `<share> <bytes>`. `bytes` is never less than what Redis has: it grows with each block, and only a count lowers it.
local BOUND_FIELD = 'h'
-- Staged blocks to which nothing was added for so long give way to others; a living attempt sends them again. Those of a hot run
-- give way at once, since no version needs it.
local IDLE_MS, STAGED_TTL_MS = 60000, 86400000

local function bound()
  local share, bytes = string.match(redis.call('HGET', KEYS[1], BOUND_FIELD) or '', '^(%d+) (%d+)$')
  return tonumber(share), tonumber(bytes)
end

local function set_bound(share, bytes)
  redis.call('HSET', KEYS[1], BOUND_FIELD, string.format('%d %d', share, bytes))
end

-- Room that blocks take at most: allocators round up, and each field has a head.
local function cost(blocks, bytes) return bytes + math.floor(bytes / 8) + 120 * blocks end
local function segment_cost(blocks, bytes)
  if tonumber(blocks) == 0 then return 0 end
  return cost(blocks, bytes) + 300
end
-- A damaged entry takes nothing: readers skip it, too.
local function entry_cost(entry)
  local blocks, bytes = string.match(entry or '', '^%S+ %S+ %S+ (%d+) (%d+)')
  return blocks and segment_cost(blocks, bytes) or 0
end

-- Bytes of a key that no entry names, by its row `h:<ident>`; then whether its blocks are staged. Damaged rows count as nothing.
local function row_bytes(row)
  local staged = string.match(row, '^s (%d+)$')
  if staged then return tonumber(staged), true end
  local blocks, bytes = string.match(row, '^d (%d+) (%d+)$')
  return blocks and segment_cost(blocks, bytes) or 0, false
end

-- Bytes of a key that no entry names, by its ident; 0 for none.
local function loose_bytes(ident)
  local bytes = row_bytes(redis.call('HGET', KEYS[1], 'h:' .. ident) or '')
  return bytes
end

-- Bytes of a segment that is about to be named, as far as its blocks were not counted when they came.
local function uncounted(ident, entry) return math.max(0, entry_cost(entry) - loose_bytes(ident)) end

-- Bytes of the segments whose blocks Redis has, and their idents; then the keys that no entry names, with what they take.
local function counted()
  local all, values, named, total, loose = redis.call('HGETALL', KEYS[1]), {}, {}, 0, {}
  for i = 1, #all, 2 do values[all[i]] = all[i + 1] end
  local function count(ident, entry)
    if not ident or values['a:' .. ident] then return end
    named[ident] = true
    total = total + entry_cost(entry)
  end
  for i = 1, #all, 2 do
    local field, value = all[i], all[i + 1]
    local kind = string.sub(field, 1, 2)
    if kind == 'd:' then
      count(field, value)
    elseif kind == 's:' then
      local begin, writer = string.match(field, '^s:%d+:'), string.match(value, '^%S+')
      count(begin and writer and begin .. writer, value)
    elseif kind == 'r:' then
      local begin, entry, writer = string.match(field, '^r:%d+:'), string.match(value, '^%d+ %S+ ((%S+) .+)$')
      count(begin and writer and begin .. writer, entry)
    elseif kind == 'z:' then
      count(string.sub(field, 3), string.match(value, '^%S+ (.+)$'))
    elseif kind == 'h:' then
      local size, is_staged = row_bytes(value)
      loose[#loose + 1] = {ident = string.sub(field, 3), is_staged = is_staged, bytes = size}
    end
  end
  return total, named, loose, tonumber(values.o or '0')
end

-- Counts what the partition has in Redis, and notes it. If `more` bytes do not fit, what nobody needs any more leaves: dropped
-- segments, staged attempts that can never be published, then idle ones, but not the segment `own`. Returns the bytes.
local function recount(share, more, own)
  local total, named, loose, opened = counted()
  local gone, free = {}, {}
  for _, one in ipairs(loose) do
    one.key = string.sub(KEYS[1], 1, -2) .. one.ident
    local left_ms = redis.call('PTTL', one.key)
    if named[one.ident] or left_ms == -2 then
      gone[#gone + 1] = one
    else
      total = total + one.bytes
      local version = tonumber(string.match(one.ident, '^d:(%d+):'))
      local is_idle = STAGED_TTL_MS - left_ms >= IDLE_MS or string.match(one.ident, '^n:r:')
      one.rank = not one.is_staged and 1 or version and version <= opened and 2 or is_idle and 3
      if one.rank and left_ms >= 0 and one.ident ~= own then free[#free + 1] = one end
    end
  end
  table.sort(free, function(a, b) return a.rank < b.rank or a.rank == b.rank and a.ident < b.ident end)
  for _, one in ipairs(free) do
    if total + more <= share then break end
    redis.call('UNLINK', one.key)
    gone[#gone + 1] = one
    total = total - one.bytes
  end
  for _, one in ipairs(gone) do redis.call('HDEL', KEYS[1], 'h:' .. one.ident) end
  set_bound(share, total)
  return total
end

-- Takes room for bytes that are about to come; returns nil, or the refusal, which names the bytes that have to leave first.
local function take_room(share, bytes, more, own)
  if bytes + more > share then bytes = recount(share, more, own) end
  if bytes + more > share then
    return {'ROOM', string.format('%d', bytes + more - share), string.format('%d', share)}
  end
  set_bound(share, bytes + more)
  return nil
end
