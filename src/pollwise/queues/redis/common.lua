-- Shared by all scripts: the names of the keys, the clock, and a job as bytes.
-- store.py describes the layout. Lua compares strings by the server's locale, so no string is
-- compared here: order is decided by numbers, or by sorted sets, which compare bytes.

local base = KEYS[1]
local META, JOBS, PAYLOADS = base .. ':meta', base .. ':jobs', base .. ':payloads'
local KINDS, READY = base .. ':kinds', base .. ':ready:'
local DELAYED, LEASED = base .. ':delayed', base .. ':leased'
local HEADS, BLOCKED = base .. ':heads', base .. ':blocked'
local UNIQUE, PAGES = base .. ':unique', base .. ':pages'
local DEAD, DONE, CANCELLED = base .. ':dead', base .. ':done', base .. ':cancelled'

local STATE = {ready = 0, delayed = 1, blocked = 2, leased = 3, dead = 4, done = 5, cancelled = 6}
-- The sets of the states that have one set of numbers.
local SETS = {
  [STATE.delayed] = DELAYED, [STATE.leased] = LEASED, [STATE.dead] = DEAD, [STATE.done] = DONE,
  [STATE.cancelled] = CANCELLED,
}
-- run: the job has been claimed or has ended, so RUN follows the head. cancel: it was asked to
-- cancel. The others: that part of the job exists, in the hash below.
local FLAG = {run = 1, errors = 2, progress = 4, cancel = 8, result = 16}
local PARTS = {
  [FLAG.errors] = base .. ':errors', [FLAG.progress] = base .. ':progress',
  [FLAG.result] = base .. ':results',
}
-- state, flags, attempt, token, run_at, created_at
local HEAD = '>BBI4I4dd'
-- since, claimed_at or 0, length of the worker; the worker follows
local RUN = '>ddH'
local HEAD_AND_RUN = '>BBI4I4ddddH'
-- form, priority, lengths of kind, key and unique; these follow, then the body. The form is 1 if
-- the body is separate, plus 2 if it has headers: their length and the headers, then the payload.
local TAIL, TAIL_SIZE = '>BhHHH', 9
-- One error: when, attempt, length of the text; the text follows.
local ERROR = '>dI4H'
local ERRORS_KEPT = 5
-- A page is this many consecutive numbers: `pages` counts the jobs in each.
local PAGE = 1024
-- The maximum number of arguments that Lua can pass at once.
local MOST_ARGUMENTS = 4000

local call, floor = redis.call, math.floor
local pack, unpack_bytes, sub, format = struct.pack, struct.unpack, string.sub, string.format
local band, bor = bit.band, bit.bor

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

-- A job as a table; its tail is read only when needed.
local function read(id, bytes)
  local job, at, size = {id = id}
  job.state, job.flags, job.attempt, job.token, job.run_at, job.created_at, at =
    unpack_bytes(HEAD, bytes)
  if job.flags % 2 == 1 then
    job.since, job.claimed_at, size, at = unpack_bytes(RUN, bytes, at)
    job.worker = sub(bytes, at, at + size - 1)
    at = at + size
  else
    job.since, job.claimed_at, job.worker = job.run_at, 0, ''
  end
  job.tail = sub(bytes, at)
  return job
end

local function names(job)
  if job.kind == nil then
    local kind, key, unique
    local tail, at = job.tail, TAIL_SIZE + 1
    job.form, job.priority, kind, key, unique = unpack_bytes(TAIL, tail)
    job.kind = sub(tail, at, at + kind - 1)
    at = at + kind
    if key > 0 then job.key = sub(tail, at, at + key - 1) end
    at = at + key
    if unique > 0 then job.unique = sub(tail, at, at + unique - 1) end
    job.body_at = at + unique
  end
  return job
end

local function written(job)
  if job.flags % 2 == 1 then
    return pack(HEAD_AND_RUN, job.state, job.flags, job.attempt, job.token, job.run_at,
      job.created_at, job.since, job.claimed_at, #job.worker) .. job.worker .. job.tail
  end
  return pack(HEAD, job.state, job.flags, job.attempt, job.token, job.run_at,
    job.created_at) .. job.tail
end

local function load(ids)
  local found, jobs = fetch(JOBS, ids), {}
  for n, id in ipairs(ids) do
    if found[n] then jobs[n] = read(id, found[n]) else jobs[n] = false end
  end
  return jobs
end

-- Priority first (the score), then due time and put order (bytes that sort as those numbers do).
local function place(job) return pack('>dI8', job.run_at, tonumber(job.id)) end

local function place_in_line(key, id) return key .. '\0' .. pack('>I8', tonumber(id)) end

-- Changes are gathered and written in bulk, because each call has a cost. Removals come first: they
-- need no memory, and after its first write a script may continue on a full server, so that a full
-- server can be emptied.
local removed, added, saved, parts_saved, parts_removed = {}, {}, {}, {}, {}

local function gather(lists, key)
  local list = lists[key]
  if not list then list = {}; lists[key] = list end
  return list
end

local function remove(key, member)
  local set = gather(removed, key)
  set[#set + 1] = member
end

local function add(key, score, member)
  local set = gather(added, key)
  set[#set + 1] = score
  set[#set + 1] = member
end

local function save(job)
  saved[#saved + 1] = job.id
  saved[#saved + 1] = written(job)
  if job.parts then
    for flag, bytes in pairs(job.parts) do
      local list = gather(parts_saved, PARTS[flag])
      list[#list + 1] = job.id
      list[#list + 1] = bytes
    end
  end
end

local function has(job, flag) return band(job.flags, flag) ~= 0 end

-- Set a part of a job; `save` writes it.
local function set_part(job, flag, bytes)
  job.flags = bor(job.flags, flag)
  job.parts = job.parts or {}
  job.parts[flag] = bytes
end

local function part_of(job, flag)
  if not has(job, flag) then return '' end
  return job.parts and job.parts[flag] or call('HGET', PARTS[flag], job.id) or ''
end

local function clear_part(job, flag)
  if has(job, flag) then
    job.flags = job.flags - flag
    local list = gather(parts_removed, PARTS[flag])
    list[#list + 1] = job.id
  end
end

-- Add an error to those of a job, without the oldest if there are enough.
local function note_error(job, at, text)
  local kept, starts, place = part_of(job, FLAG.errors), {}, 1
  while place <= #kept do
    starts[#starts + 1] = place
    local _, _, size, text_at = unpack_bytes(ERROR, kept, place)
    place = text_at + size
  end
  if #starts >= ERRORS_KEPT then kept = sub(kept, starts[#starts - ERRORS_KEPT + 2]) end
  set_part(job, FLAG.errors, kept .. pack(ERROR, at, job.attempt, #text) .. text)
end

local ready_kinds = {}

local function add_ready(job)
  names(job)
  ready_kinds[job.kind] = true
  add(READY .. job.kind, -job.priority, place(job))
end

-- Make a job delayed until it is due, or ready.
local function await_due(job, now)
  job.since = job.run_at
  if job.run_at > now then
    job.state = STATE.delayed
    add(DELAYED, job.run_at, job.id)
  else
    job.state = STATE.ready
    add_ready(job)
  end
  save(job)
end

-- Enter a job: blocked behind its key, delayed until it is due, or ready.
local function enter(job, now)
  names(job)
  if job.key and call('HSETNX', HEADS, job.key, job.id) == 0 then
    job.state, job.since = STATE.blocked, job.run_at
    add(BLOCKED, 0, place_in_line(job.key, job.id))
    save(job)
  else
    await_due(job, now)
  end
end

-- The head of a key ended: its successor waits only for its own time.
local function free(key)
  local line = call('ZRANGEBYLEX', BLOCKED, '[' .. key .. '\0', '(' .. key .. '\1', 'LIMIT', 0, 1)
  if not line[1] then
    call('HDEL', HEADS, key)
    return
  end
  call('ZREM', BLOCKED, line[1])
  local id = name_of(unpack_bytes('>I8', line[1], #key + 2))
  call('HSET', HEADS, key, id)
  local bytes = call('HGET', JOBS, id)
  if not bytes then return free(key) end
  local job = read(id, bytes)
  job.state, job.since = STATE.delayed, job.run_at
  add(DELAYED, job.run_at, id)
  save(job)
end

local function count_pages(numbers, sign)
  local counts = {}
  for _, number in ipairs(numbers) do
    local page = floor(number / PAGE)
    counts[page] = (counts[page] or 0) + sign
  end
  for page, count in pairs(counts) do
    if call('HINCRBY', PAGES, name_of(page), count) <= 0 then
      call('HDEL', PAGES, name_of(page))
    end
  end
end

-- Delete jobs permanently.
local function forget(jobs)
  local ids, separate, uniques, numbers, parts = {}, {}, {}, {}, {}
  for n, job in ipairs(jobs) do
    names(job)
    ids[n], numbers[n] = job.id, tonumber(job.id)
    if job.form % 2 == 1 then separate[#separate + 1] = job.id end
    if job.unique then uniques[#uniques + 1] = job.unique end
    if job.flags > FLAG.run then
      for flag, key in pairs(PARTS) do
        if has(job, flag) then
          local list = gather(parts, key)
          list[#list + 1] = job.id
        end
      end
    end
  end
  bulk('HDEL', JOBS, ids)
  bulk('HDEL', PAYLOADS, separate)
  bulk('HDEL', UNIQUE, uniques)
  for key, list in pairs(parts) do bulk('HDEL', key, list) end
  count_pages(numbers, -1)
end

local gone, freed = {}, {}

local function flush()
  if #gone > 0 then forget(gone) end
  for key, ids in pairs(parts_removed) do bulk('HDEL', key, ids) end
  for key, members in pairs(removed) do bulk('ZREM', key, members) end
  for key, pairs_of in pairs(added) do bulk('ZADD', key, pairs_of) end
  bulk('HSET', JOBS, saved)
  for key, pairs_of in pairs(parts_saved) do bulk('HSET', key, pairs_of) end
  local kinds = {}
  for kind in pairs(ready_kinds) do kinds[#kinds + 1] = kind end
  bulk('SADD', KINDS, kinds)
  removed, added, saved, parts_saved, parts_removed, ready_kinds = {}, {}, {}, {}, {}, {}
  local keys = freed
  gone, freed = {}, {}
  if #keys > 0 then
    for _, key in ipairs(keys) do free(key) end
    flush()
  end
end

-- The job of a claim, if its token is the newest and it was not settled since.
local function held(job, token)
  return job and job.token == token and (job.state == STATE.leased or job.state == STATE.ready)
end

-- Take a job out of the set of its state.
local function take_out(job)
  local set = SETS[job.state]
  if set then
    remove(set, job.id)
    return
  end
  names(job)
  if job.state == STATE.ready then
    remove(READY .. job.kind, place(job))
  else
    remove(BLOCKED, place_in_line(job.key, job.id))
  end
end

-- End a job that was taken out; delete it unless ended jobs are kept. A blocked one frees no key.
local function finish(job, state, now, keep)
  names(job)
  if job.key and job.state ~= STATE.blocked then freed[#freed + 1] = job.key end
  job.state, job.since = state, now
  job.flags = bor(band(job.flags, 255 - FLAG.cancel), FLAG.run)
  if state == STATE.dead then
    add(DEAD, tonumber(job.id), job.id)
  elseif keep == '1' then
    add(SETS[state], now, job.id)
  else
    gone[#gone + 1] = job
    return
  end
  save(job)
end

-- An answer may be lost, and the call repeated while the first one is still on its way. So the last
-- answer of each caller is kept for a while: the second call gets the same answer and does nothing,
-- and a call that arrives after its caller has made the next one does nothing either.
local function answer_of(key, number)
  local kept = call('GET', key)
  if not kept then return nil end
  local at = string.find(kept, ':', 1, true)
  local newest = tonumber(sub(kept, 1, at - 1))
  if newest == tonumber(number) then return sub(kept, at + 1) end
  if newest > tonumber(number) then return '' end
end

local function keep_answer(key, number, milliseconds, answer)
  call('SET', key, number .. ':' .. answer, 'PX', milliseconds)
end

-- Nothing after this line of a script may fail: hints are not worth a job.
local function publish(channel, message)
  if message ~= '' then redis.pcall('PUBLISH', channel, message) end
end
