-- Shared by all scripts: the names of the keys, the clock, and a job as bytes.
-- store.py describes the layout. Lua compares strings by the server's locale, so no string is
-- compared here: order is decided by numbers, or by sorted sets, which compare bytes.

local base = KEYS[1]
local META, JOBS, PAYLOADS = base .. ':meta', base .. ':jobs', base .. ':payloads'
local KINDS, READY = base .. ':kinds', base .. ':ready:'
local DELAYED, LEASED = base .. ':delayed', base .. ':leased'
local HEADS, BLOCKED = base .. ':heads', base .. ':blocked'
local UNIQUE, DEAD, DONE, PAGES = base .. ':unique', base .. ':dead', base .. ':done', base .. ':pages'

local STATE = {ready = 0, delayed = 1, blocked = 2, leased = 3, dead = 4, done = 5}
-- state, has an error, attempt, token, run_at, since, created_at, lengths of worker and error
local HEAD, HEAD_SIZE = '>BBI4I4dddHH', 38
-- is the payload separate, priority, lengths of kind, key and unique; these follow, then the payload
local TAIL, TAIL_SIZE = '>BhHHH', 9
-- A page is this many consecutive numbers: `pages` counts the jobs in each.
local PAGE = 1024
-- The maximum number of arguments that Lua can pass at once.
local MOST_ARGUMENTS = 4000

local call, floor = redis.call, math.floor
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

-- A job as a table; its tail is read only when needed.
local function read(id, bytes)
  local job, worker_size, error_size = {id = id}
  job.state, job.failed, job.attempt, job.token, job.run_at, job.since, job.created_at,
    worker_size, error_size = unpack_bytes(HEAD, bytes)
  local at = HEAD_SIZE + 1
  job.worker = sub(bytes, at, at + worker_size - 1)
  at = at + worker_size
  job.error = sub(bytes, at, at + error_size - 1)
  job.tail = sub(bytes, at + error_size)
  return job
end

local function names(job)
  if job.kind == nil then
    local kind, key, unique
    local tail, at = job.tail, TAIL_SIZE + 1
    job.elsewhere, job.priority, kind, key, unique = unpack_bytes(TAIL, tail)
    job.kind = sub(tail, at, at + kind - 1)
    at = at + kind
    if key > 0 then job.key = sub(tail, at, at + key - 1) end
    at = at + key
    if unique > 0 then job.unique = sub(tail, at, at + unique - 1) end
    job.payload_at = at + unique
  end
  return job
end

local function written(job)
  return pack(HEAD, job.state, job.failed, job.attempt, job.token, job.run_at, job.since,
    job.created_at, #job.worker, #job.error) .. job.worker .. job.error .. job.tail
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
local removed, added, saved = {}, {}, {}

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

local function save(job)
  saved[#saved + 1] = job.id
  saved[#saved + 1] = written(job)
end

local ready_kinds = {}

local function add_ready(job)
  names(job)
  ready_kinds[job.kind] = true
  add(READY .. job.kind, -job.priority, place(job))
end

local function flush()
  for key, members in pairs(removed) do bulk('ZREM', key, members) end
  for key, pairs_of in pairs(added) do bulk('ZADD', key, pairs_of) end
  bulk('HSET', JOBS, saved)
  local kinds = {}
  for kind in pairs(ready_kinds) do kinds[#kinds + 1] = kind end
  bulk('SADD', KINDS, kinds)
  removed, added, saved, ready_kinds = {}, {}, {}, {}
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
  local ids, elsewhere, uniques, numbers = {}, {}, {}, {}
  for n, job in ipairs(jobs) do
    names(job)
    ids[n], numbers[n] = job.id, tonumber(job.id)
    if job.elsewhere == 1 then elsewhere[#elsewhere + 1] = job.id end
    if job.unique then uniques[#uniques + 1] = job.unique end
  end
  bulk('HDEL', JOBS, ids)
  bulk('HDEL', PAYLOADS, elsewhere)
  bulk('HDEL', UNIQUE, uniques)
  count_pages(numbers, -1)
end

-- The job of a claim, if its token is the newest and it was not settled since.
local function held(job, token)
  return job and job.token == token and (job.state == STATE.leased or job.state == STATE.ready)
end

local function take_out(job)
  if job.state == STATE.leased then
    remove(LEASED, job.id)
  else
    names(job)
    remove(READY .. job.kind, place(job))
  end
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
