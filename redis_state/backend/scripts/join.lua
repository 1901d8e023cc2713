--#include runs
-- Joins a batch of a Python streaming query: gives its run an epoch, checks the number, and begins the batch once.
-- KEYS  1 {T rs:<gen>}:q
-- ARGV  1 operator and store, as <operator>:<store name>. With only 2 a ttl in ms, for a query that no partition was acquired
--         for yet: returns a number for a new plan, a call on a driver
--       2 number of the plan   3 run id of the streaming query   4 number of the task attempt, rising within a driver
--       5 query id   6 batch id   7 first batch id   8 partitions   9 layout
--       10 watermark in ms to begin the batch with; '' to ask whether it has begun
--       11 time that Spark planned the batch for, in ms since 1970   12 id of the frame (16 hexadecimal digits), of one plan
--         of one batch. The marker rows of the task's partition have both; a task without them may not join
-- Reply PLAN number · OK epoch began-ms watermark · BEGIN epoch below (not begun by this run: check that every partition
--       has the version below, and is held by an epoch from `below` on, then send again with ARGV 10) · FENCED newest-epoch
--       MOVED gen (the store has another checkpoint by now) · QUERY id · PARTITIONS n · LAYOUT text · FIRST id · GAP newest · OLD newest
--       STALE batch (the frame was shown for that batch, or by an earlier run; '-': this run has another frame for the batch)
--       TWICE plan (another call of this run has the store) · PURGED
-- Keeps: of two runs, the one whose driver called later is the newer; within one plan, the one whose tasks came later. So a
--        task that slept cannot make its run the newest. A plan alone disturbs no run. Batch ids rise by one, or the newest
--        is repeated. A repeated batch keeps the time at which it first began. A run has one frame for each batch, and no
--        frame serves two batches, so a frame that a driver kept commits nothing, whatever clocks say.
--        If the batch below was planned again with other rows, versions written before that are not continued.
--        A run has one operator on a store. A purged query is neither planned nor begun.
local MARKS_MAX = 16
local FRAMES_MAX = 256
local query, place = KEYS[1], ARGV[1]
if redis.call('HEXISTS', query, 'purged') == 1 then return {'PURGED'} end
local moved = redis.call('HGET', query, 'moved:' .. place)
if moved then return {'MOVED', moved} end

local function text(number) return string.format('%d', number) end

local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
if #ARGV == 2 then
  if redis.call('EXISTS', query) == 0 then
    redis.call('HSET', query, 'f', '1')
    redis.call('PEXPIRE', query, ARGV[2])
  end
  local last = tonumber(redis.call('HGET', query, 'plan:' .. place) or '0')
  local plan = text(math.max(last + 1, now_ms))
  redis.call('HSET', query, 'plan:' .. place, plan)
  return {'PLAN', plan}
end

local plan, run, attempt = tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local batch, first, partitions = tonumber(ARGV[6]), ARGV[7], ARGV[8]
local newest = redis.call('HGET', query, 'epoch') or '0'
local joined = redis.call('HGET', query, 'joined:' .. place)
local epoch = nil
if joined then
  local was_plan, was_run, was_attempt, was_epoch, of_query =
    string.match(joined, '^(%d+) (%S+) (%d+) (%d+) (%S+)$')
  if of_query ~= ARGV[5] then return {'QUERY', of_query} end
  if was_run == run then
    if was_plan ~= ARGV[2] then return {'TWICE', was_plan} end
    epoch = was_epoch
    if epoch ~= newest then return {'FENCED', newest} end
  elseif plan < tonumber(was_plan) or (plan == tonumber(was_plan) and attempt <= tonumber(was_attempt)) then
    return {'FENCED', newest}
  end
end

local known = redis.call('HGET', query, 'batch:' .. place)
if known then
  local last, begun, count, layout = string.match(known, '^(%d+) (%d+) (%d+) %S+ (.*)$')
  if count ~= partitions then return {'PARTITIONS', count} end
  if layout ~= ARGV[9] then return {'LAYOUT', layout} end
  if begun ~= first then return {'FIRST', begun} end
  if batch > tonumber(last) + 1 then return {'GAP', last} end
  if batch < tonumber(last) then return {'OLD', last} end
elseif batch ~= tonumber(first) then
  return {'GAP', '-'}
end

local own = epoch or text(math.max(tonumber(newest) + 1, now_ms))
local planned, frame = ARGV[11], ARGV[12]
if planned == '' or frame == '' then return {'STALE', '-'} end

-- Times that batches were planned for: {batch, time, epoch of the run that showed the batch first, epoch of the last one}.
local marks = {}
for words in string.gmatch(redis.call('HGET', query, 'planned:' .. place) or '', '%S+') do
  marks[#marks + 1] = {string.match(words, '^(%d+):(%d+):(%d+):(%d+)$')}
end
-- Frames that were shown, each as <batch>:<frame>, the newest last.
local frames = redis.call('HGET', query, 'frames:' .. place) or ''

local shown_at = string.find(frames, ':' .. frame, 1, true)
local shown_for = shown_at and string.match(string.sub(frames, 1, shown_at - 1), '(%d+)$')
local of_run = nil
for _, mark in ipairs(marks) do
  if mark[1] == ARGV[6] and mark[4] == own then of_run = string.match(' ' .. frames, '.* ' .. mark[1] .. ':(%x+)') end
end
if frame ~= of_run and (of_run or shown_for) then return {'STALE', shown_for or '-'} end

local function note_frame()
  local noted, first_by = {}, own
  for _, mark in ipairs(marks) do
    if mark[1] ~= ARGV[6] then
      noted[#noted + 1] = table.concat(mark, ':')
    elseif mark[2] == planned then
      first_by = mark[3]
    end
  end
  if #noted >= MARKS_MAX then table.remove(noted, 1) end
  noted[#noted + 1] = table.concat({ARGV[6], planned, first_by, own}, ':')
  local known = {}
  for words in string.gmatch(frames, '%S+') do known[#known + 1] = words end
  if #known >= FRAMES_MAX then table.remove(known, 1) end
  known[#known + 1] = ARGV[6] .. ':' .. frame
  redis.call('HSET', query, 'planned:' .. place, table.concat(noted, ' '), 'frames:' .. place, table.concat(known, ' '))
end
if not of_run then note_frame() end

if not epoch then
  epoch = own
  redis.call('HSET', query, 'f', '1', 'run:' .. run, epoch .. ' d', 'epoch', epoch,
    'joined:' .. place, table.concat({ARGV[2], run, ARGV[4], epoch, ARGV[5]}, ' '))
  forget_old_runs(query)
end

local began_ms, below = text(now_ms), '0'
local begun = redis.call('HGET', query, 'begun:' .. place)
if begun then
  local of_batch, of_run, at_ms, watermark, by, of_below = string.match(begun, '^(%d+) (%S+) (%d+) (%d+) (%d+) (%d+)$')
  if of_batch == ARGV[6] then
    if of_run == run then return {'OK', epoch, at_ms, watermark} end
    began_ms, below = at_ms, of_below
  else
    below = by
    for _, mark in ipairs(marks) do
      if mark[1] == of_batch and mark[4] == by then below = mark[3] end
    end
  end
end
if ARGV[10] == '' then return {'BEGIN', epoch, below} end
redis.call('HSET', query,
  'batch:' .. place, table.concat({ARGV[6], first, partitions, run, ARGV[9]}, ' '),
  'begun:' .. place, table.concat({ARGV[6], run, began_ms, ARGV[10], epoch, below}, ' '))
return {'OK', epoch, began_ms, ARGV[10]}
