-- Shared by all scripts: the names of the keys, the clock, and a job as bytes.
-- store.py describes the layout. Lua compares strings by the server's locale, so no string is
-- compared here: order is decided by numbers, or by sorted sets, which compare bytes.

-- Every call of a script runs this file first, so it creates little. A local that functions use costs
-- each of them a search among all such locals; therefore keys, states and flags are one table each,
-- and only what is called for each job has a short name.

local base = KEYS[1]
local KEY = {
  meta = base .. ':meta', jobs = base .. ':jobs', payloads = base .. ':payloads',
  parts = base .. ':parts', kinds = base .. ':kinds', ready = base .. ':ready:',
  delayed = base .. ':delayed', leased = base .. ':leased', heads = base .. ':heads',
  blocked = base .. ':blocked', unique = base .. ':unique', dead = base .. ':dead',
  done = base .. ':done', cancelled = base .. ':cancelled', pages = base .. ':pages',
  results = base .. ':results', notes = base .. ':notes:', history = base .. ':history:',
  linked = base .. ':linked', waiting = base .. ':waiting', limited = base .. ':limited',
}
local STATE = {ready = 0, delayed = 1, blocked = 2, leased = 3, dead = 4, done = 5, cancelled = 6}
-- By state, the key of its jobs' numbers, if there is one.
local SETS = {'delayed', false, 'leased', 'dead', 'done', 'cancelled'}
-- ran: the job has been claimed or has ended, so it has the fields of a run. cancel: it was asked to
-- cancel. ahead: its newest claim was made ahead, so that it may not have started. lapsed: it waits
-- because its lease ran out. again: its lease before the newest ran out as well. waits: it is blocked,
-- not behind its key, but by other jobs of its flow. The others: it has that part, which is in `parts`
-- under its number and the flag.
-- counted: it is leased, and counts as running for its kind and limit group. Its number is that of
-- lapsed, which no leased job has; so scripts of versions without limits leave it correct.
local FLAG = {
  ran = 1, errors = 2, progress = 4, cancel = 8, result = 16, ahead = 32, lapsed = 64, again = 128,
  counted = 64, waits = 32,
}
-- In the form of a job: it is part of a flow, whose name is in the place of `unique`.
local FLOW = 8
-- For how many seconds an ended job is kept for those that come after it in its flow.
local FLOW_KEPT = 30 * 86400
-- What flows/links.lua does when jobs of flows end, and the time and `keep` of the call.
local links = {}
-- Added to the score of a job that is to be claimed alone, because its last leases ran out. It is
-- below all priorities, so such jobs come first.
local ALONE = -10000
-- A page is this many consecutive numbers: `pages` counts the jobs in each.
local PAGE = 1024
-- The maximum number of arguments that Lua can pass at once.
local MOST_ARGUMENTS = 4000

local call = redis.call
local pack, unpack_bytes, sub, format = struct.pack, struct.unpack, string.sub, string.format

local function clock(imposed)
  if imposed ~= '' then return tonumber(imposed) end
  local time = call('TIME')
  return tonumber(time[1]) + tonumber(time[2]) / 1000000
end

local function bulk(command, key, arguments)
  local count = #arguments
  for first = 1, count, MOST_ARGUMENTS do
    call(command, key, unpack(arguments, first, math.min(first + MOST_ARGUMENTS - 1, count)))
  end
end

local function fetch(key, fields)
  local found, count = {}, #fields
  for first = 1, count, MOST_ARGUMENTS do
    local last = math.min(first + MOST_ARGUMENTS - 1, count)
    local part = call('HMGET', key, unpack(fields, first, last))
    for n = 1, last - first + 1 do found[first + n - 1] = part[n] end
  end
  return found
end

local function name_of(number) return format('%.0f', number) end

-- A job as a table. Its head is state, flags, attempt, token, run_at and created_at; that of a run
-- since, claimed_at or 0, the length of the worker, and the worker. Its tail is read when needed.
local function read(id, bytes)
  local job, at, size = {id = id}
  job.state, job.flags, job.attempt, job.token, job.run_at, job.created_at, at =
    unpack_bytes('>BBI4I8dd', bytes)
  if job.flags % 2 == 1 then
    job.since, job.claimed_at, size, at = unpack_bytes('>ddH', bytes, at)
    job.worker = sub(bytes, at, at + size - 1)
    at = at + size
  else
    job.since, job.claimed_at, job.worker = job.run_at, 0, ''
  end
  job.tail = sub(bytes, at)
  return job
end

-- Read the tail of a job: form, priority, the lengths of kind, key and unique, these, and the body.
-- The form is 1 if the body is separate, plus 2 if it has headers (their length and the headers, then
-- the payload), plus 4 if it has a limit group, which is in `groups` under its number, plus FLOW.
local function names(job)
  if job.kind == nil then
    local tail, kind, key, unique, at = job.tail
    job.form, job.priority, kind, key, unique, at = unpack_bytes('>BhHHH', tail)
    job.grouped = job.form % 8 > 3
    job.kind = sub(tail, at, at + kind - 1)
    at = at + kind
    if key > 0 then job.key = sub(tail, at, at + key - 1) end
    at = at + key
    if unique > 0 then
      job[job.form < FLOW and 'unique' or 'flow'] = sub(tail, at, at + unique - 1)
    end
    job.body_at = at + unique
  end
  return job
end

local function written(job)
  if job.flags % 2 == 1 then
    return pack('>BBI4I8ddddH', job.state, job.flags, job.attempt, job.token, job.run_at,
      job.created_at, job.since, job.claimed_at, #job.worker) .. job.worker .. job.tail
  end
  return pack('>BBI4I8dd', job.state, job.flags, job.attempt, job.token, job.run_at,
    job.created_at) .. job.tail
end

-- A job of a flow is kept in `linked` until it is done or cancelled, and `jobs` has '' for it. So an
-- older script, which does not know its links, cannot read it, and fails before it changes anything.
-- The same holds for a job whose key blocks a job of a flow: an older script cannot free that one.
local function load(ids)
  local found, jobs = fetch(KEY.jobs, ids), {}
  for n, id in ipairs(ids) do
    local bytes = found[n]
    if bytes == '' then
      bytes = redis.call('HGET', KEY.linked, id)
      jobs[n] = bytes and read(id, bytes)
      if bytes then jobs[n].linked = true end
    else
      jobs[n] = bytes and read(id, bytes)
    end
  end
  return jobs
end

-- Priority first (the score), then due time and put order (bytes that sort as those numbers do).
local function place(job) return pack('>dI8', job.run_at, tonumber(job.id)) end

local function place_in_line(key, id) return key .. '\0' .. pack('>I8', tonumber(id)) end

-- Changes are gathered and written in bulk, because each call has a cost. Removals come first: they
-- need no memory, and after its first write a script may continue on a full server, so that a full
-- server can be emptied.
local removed, added, saved = {}, {}, {}
-- Lists that few scripts need: kinds that have ready jobs, parts_removed, parts_saved, linked_removed,
-- linked_saved, jobs that are gone, keys that are freed, keys that are guarded because they block a job
-- of a flow, jobs of flows that ended, flows that are over.
local others = {}

local function note(name, value)
  local list = others[name]
  if not list then list = {}; others[name] = list end
  list[#list + 1] = value
end

local function remove(key, member)
  local set = removed[key]
  if not set then set = {}; removed[key] = set end
  set[#set + 1] = member
end

local function add(key, score, member)
  local set = added[key]
  if not set then set = {}; added[key] = set end
  set[#set + 1] = score
  set[#set + 1] = member
end

-- Save a job; returns its bytes.
local function save(job)
  local bytes, linked = written(job), job.linked or job.flow
  saved[#saved + 1] = job.id
  if linked and job.state <= STATE.dead then
    saved[#saved + 1] = ''
    note('linked_saved', job.id)
    note('linked_saved', bytes)
  else
    saved[#saved + 1] = bytes
    if linked then note('linked_removed', job.id) end
  end
  if job.parts then
    for flag, part in pairs(job.parts) do
      note('parts_saved', job.id .. ':' .. flag)
      note('parts_saved', part)
    end
  end
  return bytes
end

local function has(job, flag) return bit.band(job.flags, flag) ~= 0 end

-- Set a part of a job; `save` writes it.
local function set_part(job, flag, bytes)
  job.flags = bit.bor(job.flags, flag)
  job.parts = job.parts or {}
  job.parts[flag] = bytes
end

local function part_of(job, flag)
  if not has(job, flag) then return '' end
  return job.parts and job.parts[flag] or redis.call('HGET', KEY.parts, job.id .. ':' .. flag) or ''
end

local function clear_part(job, flag)
  if has(job, flag) then
    job.flags = job.flags - flag
    note('parts_removed', job.id .. ':' .. flag)
  end
end

-- Add an error (when, attempt, length, text) to those of a job, without the oldest of them if there
-- are enough.
local function note_error(job, at, text)
  local kept, starts, place = part_of(job, FLAG.errors), {}, 1
  while place <= #kept do
    starts[#starts + 1] = place
    local _, _, size, text_at = struct.unpack('>dI4H', kept, place)
    place = text_at + size
  end
  if #starts >= 5 then kept = string.sub(kept, starts[#starts - 3]) end  -- ERRORS_KEPT
  set_part(job, FLAG.errors, kept .. struct.pack('>dI4H', at, job.attempt, #text) .. text)
end

-- The text of the newest error of a job; '' if it has none.
local function last_error(job)
  local kept, place, text = part_of(job, FLAG.errors), 1, ''
  while place <= #kept do
    local _, _, size, text_at = struct.unpack('>dI4H', kept, place)
    place = text_at + size
    text = string.sub(kept, text_at, place - 1)
  end
  return text
end

-- What `limited` says of each kind, or false: 'g' if its limit groups take turns, so that its ready jobs
-- are in `lines`; 'k' if it has other limits; 'm' if jobs are to be moved back from `lines`; then its
-- limits as JSON, or nothing if it has none any more.
local limits_known = {}
local limits_made
-- What scripts do with limits. It is made when a script first needs it, because most calls need none.
local function limits()
  if limits_made then return limits_made end
  local made, pack, call = {}, struct.pack, redis.call
  limits_made = made
  KEY.lines, KEY.running, KEY.groups = base .. ':lines:', base .. ':running:', base .. ':groups'
  KEY.turns, KEY.full = base .. ':turns', base .. ':full:'
  KEY.circle, KEY.back, KEY.entered = base .. ':circle:', base .. ':back:', base .. ':entered'

  function made.of(kind)
    if limits_known[kind] == nil then limits_known[kind] = call('HGET', KEY.limited, kind) end
    return limits_known[kind]
  end

  function made.group_of(job)
    if not job.group then
      job.group = names(job).grouped and call('HGET', KEY.groups, job.id) or ''
    end
    return job.group
  end

  -- The groups of several jobs at once.
  function made.read_groups(jobs)
    local ids, grouped = {}, {}
    for _, job in ipairs(jobs) do
      if job and names(job).grouped then
        ids[#ids + 1], grouped[#grouped + 1] = job.id, job
      end
    end
    if ids[1] then
      for n, group in ipairs(fetch(KEY.groups, ids)) do grouped[n].group = group or '' end
    end
  end

  -- The place of a job among those of all limit groups of its kind: its group, then as in `ready`. All
  -- scores are 0, so that the jobs of a group are a range, and the next group is found at once.
  function made.place(job)
    return made.group_of(job) .. '\0' .. pack('>H', 32768 - job.priority) .. place(job)
  end

  local entered = {}

  -- Enter the group of a job in the circle of its kind, if groups take turns: it became ready, or is
  -- leased no longer. limits/plan.py describes the circle.
  function made.enter(job)
    if sub(made.of(names(job).kind) or '', 1, 1) ~= 'g' then return end
    local key, group = KEY.circle .. job.kind, made.group_of(job)
    local of_kind = entered[key]
    if not of_kind then of_kind = {}; entered[key] = of_kind end
    if of_kind[group] then return end
    of_kind[group] = true
    add(key, 0, group)
  end

  -- Let a leased job count as running, until the end of its lease. A job without a group counts in the
  -- group '' if groups take turns.
  function made.count(job, until_)
    local key = KEY.running .. names(job).kind
    job.flags = bit.bor(job.flags, FLAG.counted)
    add(key, until_, job.id)
    if job.grouped or string.sub(made.of(job.kind) or '', 1, 1) == 'g' then
      add(key .. '\0' .. made.group_of(job), until_, job.id)
    end
  end

  local ungrouped = {}  -- by kind, whether jobs count in the group ''

  -- A lease ended; or, if it stays, begins again at once.
  function made.uncount(job, stays)
    if not stays then made.enter(job) end
    local key = KEY.running .. names(job).kind
    remove(key, job.id)
    if not job.grouped and ungrouped[job.kind] == nil then
      ungrouped[job.kind] = call('EXISTS', key .. '\0') == 1
    end
    if job.grouped or ungrouped[job.kind] then
      remove(key .. '\0' .. made.group_of(job), job.id)
    end
  end

  return made
end

local function add_ready(job)
  names(job)
  local key, kind = KEY.ready .. job.kind, job.kind
  local alone = has(job, FLAG.lapsed) and has(job, FLAG.again)
  if not added[key] and limits_known[kind] == nil then
    limits_known[kind] = redis.call('HGET', KEY.limited, kind)
  end
  if limits_known[kind] and not alone and string.sub(limits_known[kind], 1, 1) == 'g' then
    key = limits() and KEY.lines .. kind
    if not added[key] then note('kinds', kind) end
    add(key, 0, limits().place(job))
    limits().enter(job)
    return
  end
  if not added[key] then note('kinds', kind) end
  add(key, (alone and ALONE or 0) - job.priority, place(job))
end

-- Make a job delayed until it is due, or ready.
local function await_due(job, now)
  job.since = job.run_at
  if job.run_at > now then
    job.state = STATE.delayed
    add(KEY.delayed, job.run_at, job.id)
  else
    job.state = STATE.ready
    add_ready(job)
  end
  save(job)
end

-- Enter a job: blocked behind its key, delayed until it is due, or ready.
local function enter(job, now)
  names(job)
  if job.key and redis.call('HSETNX', KEY.heads, job.key, job.id) == 0 then
    job.state, job.since = STATE.blocked, job.run_at
    add(KEY.blocked, 0, place_in_line(job.key, job.id))
    save(job)
    if job.flow then note('guarded', job.key) end
  else
    await_due(job, now)
  end
end

-- The head of a key ended: its successor waits only for its own time.
local function free(key)
  local low, high = '[' .. key .. '\0', '(' .. key .. '\1'
  local line = redis.call('ZRANGEBYLEX', KEY.blocked, low, high, 'LIMIT', 0, 2)
  if not line[1] then
    redis.call('HDEL', KEY.heads, key)
    return
  end
  redis.call('ZREM', KEY.blocked, line[1])
  local id = name_of(struct.unpack('>I8', line[1], #key + 2))
  redis.call('HSET', KEY.heads, key, id)
  local job = load({id})[1]
  if not job then return free(key) end
  if line[2] and redis.call('EXISTS', KEY.linked) == 1 then job.linked = true end
  job.state, job.since = STATE.delayed, job.run_at
  add(KEY.delayed, job.run_at, id)
  save(job)
end

local function count_pages(numbers, sign)
  local counts, floor = {}, math.floor
  for _, number in ipairs(numbers) do
    local page = floor(number / PAGE)
    counts[page] = (counts[page] or 0) + sign
  end
  for page, count in pairs(counts) do
    if redis.call('HINCRBY', KEY.pages, name_of(page), count) <= 0 then
      redis.call('HDEL', KEY.pages, name_of(page))
    end
  end
end

-- Delete jobs permanently.
local function forget(jobs)
  local ids, separate, uniques, numbers, parts, groups = {}, {}, {}, {}, {}, {}
  for n, job in ipairs(jobs) do
    names(job)
    ids[n], numbers[n] = job.id, tonumber(job.id)
    if job.form % 2 == 1 then separate[#separate + 1] = job.id end
    if job.grouped then groups[#groups + 1] = job.id end
    if job.unique then uniques[#uniques + 1] = job.unique end
    if job.flow then
      job.gone = true
      note('ended', job)
    end
    if job.flow or job.linked then note('linked_removed', job.id) end
    if job.flags > FLAG.ran then
      for _, flag in ipairs({FLAG.errors, FLAG.progress, FLAG.result}) do
        if has(job, flag) then parts[#parts + 1] = job.id .. ':' .. flag end
      end
    end
  end
  bulk('HDEL', KEY.jobs, ids)
  bulk('HDEL', KEY.payloads, separate)
  bulk('HDEL', KEY.unique, uniques)
  bulk('HDEL', KEY.parts, parts)
  if groups[1] then bulk('HDEL', limits() and KEY.groups, groups) end
  count_pages(numbers, -1)
end

local function flush()
  local noted = others
  if noted.gone then forget(noted.gone) end
  if noted.parts_removed then bulk('HDEL', KEY.parts, noted.parts_removed) end
  if noted.linked_removed then bulk('HDEL', KEY.linked, noted.linked_removed) end
  for key, members in pairs(removed) do bulk('ZREM', key, members) end
  for key, pairs_of in pairs(added) do bulk('ZADD', key, pairs_of) end
  bulk('HSET', KEY.jobs, saved)
  if noted.linked_saved then bulk('HSET', KEY.linked, noted.linked_saved) end
  if noted.parts_saved then bulk('HSET', KEY.parts, noted.parts_saved) end
  if noted.kinds then bulk('SADD', KEY.kinds, noted.kinds) end
  removed, added, saved, others = {}, {}, {}, {}
  if noted.freed then
    for _, key in ipairs(noted.freed) do free(key) end
  end
  if noted.ended then links.use().follow(noted.ended) end
  if noted.freed or noted.ended then flush() end
  if noted.over then links.use().let_go(noted.over) end
  if noted.guarded then links.use().guard(noted.guarded) end
end

-- The token of a claim: at least this time in microseconds. So a server that has lost a claim, after
-- a failover or a restart, never gives its token to another one.
local function token_at(now) return math.floor(now * 1000000) end

-- The job of a claim, if its token is the newest and it was not settled since.
local function held(job, token)
  return job and job.token == token and (job.state == STATE.leased or job.state == STATE.ready)
end

-- Take a job out of the set of its state. stays: it is leased, and remains so.
local function take_out(job, stays)
  local set = SETS[job.state]
  if set then
    remove(KEY[set], job.id)
    if job.state == STATE.leased and has(job, FLAG.counted) then limits().uncount(job, stays) end
    if job.state > STATE.dead then remove(KEY.results, job.id) end
    return
  end
  names(job)
  if job.state == STATE.ready then
    remove(KEY.ready .. job.kind, place(job))
    if limits().of(job.kind) then remove(KEY.lines .. job.kind, limits().place(job)) end
  elseif has(job, FLAG.waits) then
    remove(KEY.waiting, job.id)
    job.flags = job.flags - FLAG.waits
  else
    remove(KEY.blocked, place_in_line(job.key, job.id))
  end
end

-- Free the `unique` of a job that is kept after its end.
local function free_unique(job)
  names(job)
  if not job.unique then return end
  redis.call('HDEL', KEY.unique, job.unique)
  job.tail = struct.pack('>BhHHH', job.form, job.priority, #job.kind, #(job.key or ''), 0) ..
    job.kind .. (job.key or '') .. string.sub(job.tail, job.body_at)
  job.body_at = job.body_at - #job.unique
  job.unique = nil
end

-- End a job that was taken out; delete it unless ended jobs are kept. A blocked one frees no key.
-- keep: for how many seconds they are kept; '0' if they are not.
-- more: for how many seconds it is kept for its result, if that is longer.
local function finish(job, state, now, keep, more)
  names(job)
  if job.flow then
    note('ended', job)
    links.now, links.keep = now, keep
    -- Also if a client that does not know of flows says for how long.
    if (more or tonumber(keep)) < FLOW_KEPT then more = (more or 0) + FLOW_KEPT end
  end
  if job.key and job.state ~= STATE.blocked then note('freed', job.key) end
  job.state, job.since = state, now
  job.flags = bit.bor(bit.band(job.flags, 255 - FLAG.cancel), FLAG.ran)
  if state == STATE.dead then
    add(KEY.dead, tonumber(job.id), job.id)
  elseif keep ~= '0' then
    add(KEY[SETS[state]], now, job.id)
    if more then add(KEY.results, now + more, job.id) end
    free_unique(job)
  elseif more then
    add(KEY[SETS[state]], now + more, job.id)
    add(KEY.results, now + more, job.id)
    free_unique(job)
  else
    note('gone', job)
    return
  end
  save(job)
end

-- An answer may be lost, and the call repeated while the first one is still on its way. So the last
-- answer of each caller is kept for a while: the second call gets the same answer and does nothing,
-- and a call that arrives after its caller has made the next one does nothing either.
local function answer_of(key, number)
  local kept = redis.call('GET', key)
  if not kept then return nil end
  local at = string.find(kept, ':', 1, true)
  local newest = tonumber(string.sub(kept, 1, at - 1))
  if newest == tonumber(number) then return string.sub(kept, at + 1) end
  if newest > tonumber(number) then return '' end
end

local function keep_answer(key, number, milliseconds, answer)
  redis.call('SET', key, number .. ':' .. answer, 'PX', milliseconds)
end

-- The value of a note, if it is not gone yet.
local function note_value(bytes, now)
  if bytes and struct.unpack('>d', bytes) > now then return string.sub(bytes, 9) end
end

local function drop_expired_notes(key, now)
  local found, gone = redis.call('HGETALL', key), {}
  for at = 1, #found, 2 do
    if not note_value(found[at + 1], now) then gone[#gone + 1] = found[at] end
  end
  bulk('HDEL', key, gone)
end

-- Nothing after this line of a script may fail: hints are not worth a job.
local function publish(channel, message)
  if message ~= '' then redis.pcall('PUBLISH', channel, message) end
end

-- Write a row of history, also in place of one of the same time and writer.
local function write_history(level, at, writer, value, kept)
  local key, name = KEY.history .. level, at .. ' ' .. writer
  redis.call('ZADD', key, at, name)
  redis.call('HSET', key .. ':rows', name, value)
  if kept ~= '' then
    redis.call('EXPIRE', key, kept)
    redis.call('EXPIRE', key .. ':rows', kept)
  end
end
