-- Uses limits/claims.lua.
-- Uses flows/links.lua.
-- Take the best jobs that may run now, each under a lease; or one whose last leases ran out, alone.
-- ARGV: now, worker, limit, lease, maximum bytes, maximum jobs made ready, how long ended jobs are
-- kept, whether some will wait before they start, whether to leave alone what is to be claimed alone,
-- the channel, the message, whether kinds are named; then the kinds.
-- Returns the jobs (their number, size and bytes, one after the other); until when they are
-- leased; in how many seconds to claim again, or ''; whether the job is claimed alone; the kinds that
-- limit how many of their jobs run, or nil if no kind has limits; and, of the jobs whose lease ran out
-- before, their number and last error, one after the other, if there are any.
local imposed, worker, limit, lease, most_bytes, most_due, keep, ahead, only_others, channel,
  message, named = unpack(ARGV, 1, 12)
limit, most_bytes = tonumber(limit), tonumber(most_bytes)
local now = clock(imposed)
local until_ = now + tonumber(lease)
if call('EXISTS', base .. ':cuts') == 1 then links.use().go_on(now, keep) end

-- Make due jobs ready: leased ones whose lease ran out, unless they were asked to cancel, and delayed
-- ones, among them those that a cancelled one had blocked.
for _, key in ipairs({KEY.leased, KEY.delayed}) do
  local due = call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, most_due)
  if #due > 0 then
    for n, job in ipairs(load(due)) do
      remove(key, due[n])
      if job then
        if job.state == STATE.leased then
          if has(job, FLAG.counted) then limits().uncount(job) end
          note_error(job, job.since, 'the lease of ' .. job.worker .. ' ran out')
          job.flags = bit.bor(job.flags, FLAG.lapsed)
        end
        if has(job, FLAG.cancel) then
          finish(job, STATE.cancelled, now, keep)
        else
          job.state, job.since, job.worker = STATE.ready, job.run_at, ''
          add_ready(job)
          save(job)
        end
      end
    end
    flush()
  end
end

-- One stream per kind, read in pieces; their first jobs are in a heap, the best on top.
local KINDS_EXAMINED = 1000  -- of any kind; of more kinds, each claim looks at others
local kinds, open, charge, sampled = {}, nil, nil, false
local special = call('EXISTS', KEY.limited, KEY.notes .. 'pauses') > 0
if named == '1' then
  for n = 13, #ARGV do kinds[#kinds + 1] = ARGV[n] end
elseif special or call('SCARD', KEY.kinds) <= KINDS_EXAMINED then
  kinds = call('SMEMBERS', KEY.kinds)
else
  kinds, sampled = call('SRANDMEMBER', KEY.kinds, KINDS_EXAMINED), true
end
if special then
  open, charge = with_limits(kinds, named == '1', limit, now, imposed == '', {
    KEY, STATE, ALONE, limits_known, fetch, load, names, remove, add, flush, add_ready, bulk, name_of,
    limits,
  })
  local paused, left = {}, {}
  for _, kind in ipairs(call('HKEYS', KEY.notes .. 'pauses')) do paused[kind] = true end
  -- A pause of `build` also applies to `build#<hash>`: see plain_kind in notes.py.
  local with_requirement = '^(.+)#' .. string.rep('[0-9a-f]', 16) .. '$'
  for _, kind in ipairs(kinds) do
    local plain = string.match(kind, with_requirement) or kind
    if not paused[''] and not paused[kind] and not paused[plain] then left[#left + 1] = kind end
  end
  kinds = left
end
local piece = math.max(math.ceil(limit / math.max(#kinds, 1)), 8)
if #kinds == 1 then piece = limit end

local function read_on(stream)
  if stream.limited then
    stream.places = {}
    return
  end
  local last = stream.read + math.min(piece, 1000)
  stream.places = call('ZRANGE', stream.key, stream.read, last - 1, 'WITHSCORES')
  stream.at, stream.read = 1, last
end

local function look(stream)
  if stream.at > #stream.places then
    if #stream.places > 0 then read_on(stream) end
    if #stream.places == 0 then return false end
  end
  stream.score = tonumber(stream.places[stream.at + 1])
  stream.run_at, stream.number = unpack_bytes('>dI8', stream.places[stream.at])
  return true
end

local function before(a, b)
  if a.score ~= b.score then return a.score < b.score end
  if a.run_at ~= b.run_at then return a.run_at < b.run_at end
  return a.number < b.number
end

local heap = {}

local function sink(at)
  local item = heap[at]
  while true do
    local child = 2 * at
    if child > #heap then break end
    if child < #heap and before(heap[child + 1], heap[child]) then child = child + 1 end
    if not before(heap[child], item) then break end
    heap[at] = heap[child]
    at = child
  end
  heap[at] = item
end

local streams, exhausted = {}, {}
for _, kind in ipairs(kinds) do
  local stream
  if open and limits_known[kind] then
    stream = open(kind, limits_known[kind])
  else
    stream = {key = KEY.ready .. kind, read = 0, taken = 0}
  end
  if not stream.limited then read_on(stream) end
  local found = look(stream)
  if found then heap[#heap + 1] = stream end
  if found or stream.kind then
    streams[#streams + 1] = stream
  elseif named ~= '1' then
    exhausted[#exhausted + 1] = kind
  end
end
for at = math.floor(#heap / 2), 1, -1 do sink(at) end
bulk('SREM', KEY.kinds, exhausted)

local function next_ids(count)
  local ids, from = {}, {}
  while #ids < count and #heap > 0 do
    local stream = heap[1]
    local number = stream.number
    if stream.order then
      stream.picked = (stream.picked or 0) + 1
      number = stream.order[stream.picked].number
    end
    ids[#ids + 1], from[#from + 1] = name_of(number), stream
    stream.at = stream.at + 2
    if not look(stream) then
      heap[1] = heap[#heap]
      heap[#heap] = nil
    end
    if #heap > 1 then sink(1) end
  end
  return ids, from
end

local alone = #heap > 0 and heap[1].score < ALONE / 2
if alone then limit = only_others == '1' and 0 or 1 end

-- Read jobs in growing pieces, because their sizes are unknown, and stop at enough bytes.
local answer, size, count, step, more, again = {}, 0, 0, 16, true, sampled
local token, lapses = token_at(now), nil
while more and count < limit do
  local ids, from = next_ids(math.min(step, limit - count))
  if #ids == 0 then break end
  local jobs = load(ids)
  if open then limits().read_groups(jobs) end
  for n, job in ipairs(jobs) do
    if more then
      local stream, group = from[n], nil
      stream.taken = stream.taken + 1
      if stream.order then
        local item = stream.order[stream.taken]
        group = item.group
        remove(KEY.lines .. stream.kind, item.member)
        if stream.mixed then remove(stream.key, sub(item.member, -16)) end
        -- A version that knows no groups may have changed the job.
        if not (job and job.state == STATE.ready and names(job).kind == stream.kind
            and limits().place(job) == item.member) then
          job, again = false, true
        end
      elseif stream.suspect then
        group = stream.suspect
        remove(stream.key, group.place)
      end
      if job then  -- else the job is gone, and its entry is removed
        job.state, job.since, job.worker, job.claimed_at = STATE.leased, until_, worker, now
        clear_part(job, FLAG.progress)
        local lapsed, flags = has(job, FLAG.lapsed), bit.bor(job.flags, FLAG.ran)
        -- One more than a settlement adds, so that the two can be told apart.
        job.token = math.max(job.token + (lapsed and 2 or 1), token)
        if not (lapsed and has(job, FLAG.ahead)) then job.attempt = job.attempt + 1 end
        flags = bit.band(flags, 255 - FLAG.lapsed - FLAG.again - FLAG.ahead)
        if lapsed then
          flags, lapses = flags + FLAG.again, lapses or {}
          lapses[#lapses + 1], lapses[#lapses + 2] = job.id, last_error(job)
        end
        if ahead == '1' and not alone then flags = flags + FLAG.ahead end
        job.flags = flags
        local form = string.byte(job.tail)
        if stream.limited or form % 8 > 3 then
          limits().count(job, until_)
          if stream.limited then stream.leased = stream.leased + 1 end
          if group then group.leased = group.leased + 1 end
        end
        local bytes = save(job)
        add(KEY.leased, until_, job.id)
        if form % 2 == 1 then
          bytes = bytes .. (call('HGET', KEY.payloads, job.id) or 'null')
        end
        answer[#answer + 1] = pack('>I8I4', tonumber(job.id), #bytes)
        answer[#answer + 1] = bytes
        size, count = size + #bytes, count + 1
        more = size < most_bytes
      end
    end
  end
  if size * 8 < most_bytes then step = math.min(step * 4, 1000) end
end
for _, stream in ipairs(streams) do
  if stream.taken > 0 and not stream.order and not stream.suspect then
    call('ZREMRANGEBYRANK', stream.key, 0, stream.taken - 1)
  end
end
flush()

local due, counted = '', nil
if open then
  counted = {}
  for _, stream in ipairs(streams) do
    local wait = stream.limited and charge(stream)
    if wait and (due == '' or wait < due) then due = wait end
    again = again or stream.again
    if stream.by_turn or stream.slots and stream.slots < math.huge then
      counted[#counted + 1] = stream.kind
    end
  end
end
if alone then
  due = ''
elseif not more or again and count < limit then
  due = '0'
elseif count < limit then
  for _, key in ipairs({KEY.delayed, KEY.leased}) do
    local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')
    if first[1] then
      local left = math.max(tonumber(first[2]) - now, 0)
      if due == '' or left < due then due = left end
    end
  end
  if due ~= '' then due = format('%.17g', due) end
else
  due = ''
end
publish(channel, message)
return {table.concat(answer), format('%.17g', until_), due, alone and 1 or 0, counted or false, lapses}
