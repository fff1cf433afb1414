-- ARGV: now; then, to count by kind, how many jobs that are not ready to read at most.
-- Returns ready, delayed, blocked, leased, dead, done, cancelled, and the age of the oldest ready job
-- or ''. By kind: the time, a string of the states (as digits) of which not all were read, and for
-- each kind and state: kind, state, count and the earliest run_at. Overdue jobs count as ready.
local now, most = clock(ARGV[1]), tonumber(ARGV[2])
-- How many overdue jobs are read to find the oldest.
local OVERDUE_READ = 1000
local ready, oldest, tally = 0, nil, {}

local function older(run_at) if not oldest or run_at < oldest then oldest = run_at end end

local function count(kind, state, number, run_at)
  local of_kind = tally[kind] or {}
  local entry = of_kind[state] or {count = 0, first = run_at}
  entry.count, entry.first = entry.count + number, math.min(entry.first, run_at)
  tally[kind], of_kind[state] = of_kind, entry
end

-- The jobs of a kind whose limit groups take turns: the first of each group and priority is its oldest.
-- Returns how many there are; of very many groups, some are not looked at.
local function waiting(kind)
  local key, looks = limits() and KEY.lines .. kind, 0
  local first = call('ZRANGEBYLEX', key, '-', '+', 'LIMIT', 0, 1)
  while first[1] and looks < OVERDUE_READ do
    looks = looks + 1
    local priority, run_at = unpack_bytes('>Hd', first[1], #first[1] - 17)
    older(run_at)
    local after = '[' .. sub(first[1], 1, #first[1] - 18) .. pack('>H', priority + 1)
    first = call('ZRANGEBYLEX', key, after, '+', 'LIMIT', 0, 1)
  end
  return call('ZCARD', key)
end

local kinds, listed, limited = call('SMEMBERS', KEY.kinds), {}, {}
for _, kind in ipairs(kinds) do listed[kind] = true end
for _, kind in ipairs(call('HKEYS', KEY.limited)) do
  limited[kind] = true
  if not listed[kind] then kinds[#kinds + 1] = kind end
end
for _, kind in ipairs(kinds) do
  local key = KEY.ready .. kind
  local number, before = call('ZCARD', key), oldest
  oldest = nil
  if limited[kind] then number = number + waiting(kind) end
  ready = ready + number
  -- The first of each priority is its oldest.
  local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')
  while first[1] do
    older((unpack_bytes('>d', first[1])))
    first = call('ZRANGEBYSCORE', key, '(' .. first[2], '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  end
  if oldest and most then count(kind, STATE.ready, number, oldest) end
  if before then older(before) end
end

if most then
  local incomplete, left = '', most
  local sets = {'delayed', 'leased', 'blocked', 'waiting', 'dead', 'done', 'cancelled'}
  for n, name in ipairs(sets) do
    local size, share = call('ZCARD', KEY[name]), math.floor(left / (#sets + 1 - n))
    local ids = call(name == 'dead' and 'ZREVRANGE' or 'ZRANGE', KEY[name], 0, share - 1)
    if share == 0 then ids = {} end
    if name == 'blocked' then
      for at, member in ipairs(ids) do ids[at] = name_of(unpack_bytes('>I8', member, #member - 7)) end
    end
    left = left - #ids
    if size > #ids then incomplete = incomplete .. STATE[name == 'waiting' and 'blocked' or name] end
    local waits = name == 'delayed' or name == 'leased'
    if waits and call('ZCOUNT', KEY[name], '-inf', now) > #ids then
      incomplete = incomplete .. STATE.ready
    end
    for _, job in ipairs(load(ids)) do
      if job then
        local over = waits and job.since <= now
        count(names(job).kind, over and STATE.ready or job.state, 1, job.run_at)
      end
    end
  end
  local answer = {format('%.17g', now), incomplete}
  for kind, of_kind in pairs(tally) do
    for state, entry in pairs(of_kind) do
      for _, part in ipairs({kind, state, entry.count, format('%.17g', entry.first)}) do
        answer[#answer + 1] = part
      end
    end
  end
  return answer
end

local counts = {}
for _, key in ipairs({KEY.delayed, KEY.leased}) do
  local over = call('ZCOUNT', key, '-inf', now)
  counts[key] = call('ZCARD', key) - over
  ready = ready + over
  -- Delayed ones are sorted by time.
  local read = math.min(over, key == KEY.delayed and 1 or OVERDUE_READ)
  if read > 0 then
    for _, job in ipairs(load(call('ZRANGE', key, 0, read - 1))) do
      if job then older(job.run_at) end
    end
  end
end
return {
  ready, counts[KEY.delayed], call('ZCARD', KEY.blocked) + call('ZCARD', KEY.waiting),
  counts[KEY.leased],
  call('ZCARD', KEY.dead), call('ZCARD', KEY.done), call('ZCARD', KEY.cancelled),
  oldest and format('%.17g', math.max(now - oldest, 0)) or '',
}
