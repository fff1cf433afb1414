-- A page of jobs, the newest put first; all jobs also in put order.
-- ARGV: now, the first and the last number, whether the newest come first, how many, the maximum
-- number of pages to read at once, maximum bytes, a state or '', a worker or ''; then the kinds,
-- unless all are meant. In place of a state, 'of:' and a number: the jobs of the flow of that job.
-- Returns the answer; the time; and the number to continue after, or '' at the end, or if there are
-- enough. The answer is the number, size and bytes of each job, and the size and bytes of each part
-- that it has. Unless one job is asked for, long payloads and results are cut: a list has their
-- beginnings. Of a flow also: the number and the links of each job, as in flows/links.lua.
local now, newest = clock(ARGV[1]), ARGV[4] == '1'
local first, last, limit = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[5])
local most_pages, most_bytes = tonumber(ARGV[6]), tonumber(ARGV[7])
local state, worker, kinds = tonumber(ARGV[8]), ARGV[9], nil
for at = 10, #ARGV do
  kinds = kinds or {}
  kinds[ARGV[at]] = true
end

-- One byte more than LISTED_MAX, so that the client sees what was cut. Characters may be of 4 bytes.
local LISTED, whole = 201 * 4, first == last

local function state_of(job)
  local waits = job.state == STATE.delayed or job.state == STATE.leased
  return waits and job.since <= now and STATE.ready or job.state
end

-- True for a job that was kept for a result whose time is over.
local function expired(job)
  if job.state <= STATE.dead then return false end
  local over = call('ZSCORE', KEY.results, job.id)
  return over and tonumber(over) <= now
end

local answer, count, size = {}, 0, 0
local extra = 0  -- bytes that were read and cut

local function append(bytes)
  answer[#answer + 1] = bytes
  size = size + #bytes
end

-- Add the jobs that match; returns '' if there are enough, the number of the last one if the answer
-- is large enough, or nothing if all were read.
local function show(ids)
  local found = fetch(KEY.jobs, ids)
  for n, id in ipairs(ids) do
    if found[n] == '' then found[n] = call('HGET', KEY.linked, id) end
    local job = found[n] and read(id, found[n])
    if job and (state == nil or state == state_of(job)) and (worker == '' or worker == job.worker)
        and (kinds == nil or kinds[names(job).kind]) and not expired(job) then
      local bytes = found[n]
      if names(job).form % 2 == 1 then
        local body = call('HGET', KEY.payloads, id) or 'null'
        extra = extra + #body
        if not whole then
          local headers = job.form % 4 > 1 and unpack_bytes('>H', body) + 2 or 0
          body = sub(body, 1, headers + LISTED)
        end
        bytes = bytes .. body
      end
      append(pack('>I8I4', tonumber(id), #bytes))
      append(bytes)
      for _, flag in ipairs({FLAG.errors, FLAG.progress, FLAG.result}) do
        if has(job, flag) then
          local part = part_of(job, flag)
          if flag == FLAG.result and not whole then
            extra = extra + #part
            part = sub(part, 1, LISTED)
          end
          append(pack('>I4', #part))
          append(part)
        end
      end
      count = count + 1
      if count == limit then return '' end
      if size + extra > most_bytes then return id end
    end
  end
end

local function sort(numbers)
  table.sort(numbers, newest and function(a, b) return a > b end or nil)
end

local function through_dead()
  for _ = 1, most_pages do
    local from, to = name_of(last), name_of(first)
    local ids = call('ZREVRANGEBYSCORE', KEY.dead, from, to, 'LIMIT', 0, PAGE)
    if #ids == 0 then return '' end
    local stopped = show(ids)
    if stopped then return stopped end
    last = tonumber(ids[#ids]) - 1
  end
  return name_of(last + 1)
end

local function through_pages()
  local pages = {}
  for _, page in ipairs(call('HKEYS', KEY.pages)) do
    page = tonumber(page)
    if (page + 1) * PAGE > first and page * PAGE <= last then pages[#pages + 1] = page end
  end
  sort(pages)
  for n, page in ipairs(pages) do
    if n > most_pages then return name_of(newest and (page + 1) * PAGE or page * PAGE - 1) end
    local ids, from, to = {}, math.max(page * PAGE, first), math.min((page + 1) * PAGE - 1, last)
    for step = 0, to - from do ids[#ids + 1] = name_of(newest and to - step or from + step) end
    local stopped = show(ids)
    if stopped then return stopped end
  end
  return ''
end

-- Few jobs of a state among many: sort those few instead of reading page after page.
local function through_set(key)
  local numbers, ids = {}, {}
  for _, member in ipairs(call('ZRANGE', key, 0, -1)) do
    local number = tonumber(member)
    if number >= first and number <= last then numbers[#numbers + 1] = number end
  end
  sort(numbers)
  for n, number in ipairs(numbers) do ids[n] = name_of(number) end
  return show(ids) or ''
end

-- The members of a flow, in put order.
local function through_flow(id, linked)
  local job, numbers, ids, fields = load({id})[1], {}, {}, {}
  if not job or not names(job).flow or expired(job) then return '' end
  local key = base .. ':flow:' .. job.flow
  for _, field in ipairs(call('HKEYS', key)) do
    local number = sub(field, 1, 1) == '<' and tonumber(sub(field, 2))
    if number and number >= first and number <= last then numbers[#numbers + 1] = number end
  end
  sort(numbers)
  for n = 1, math.min(#numbers, limit) do
    ids[n] = name_of(numbers[n])
    fields[n] = '<' .. ids[n]
  end
  for n, bytes in ipairs(fetch(key, fields)) do
    linked[#linked + 1] = ids[n]
    linked[#linked + 1] = bytes
  end
  local stopped = show(ids)
  if not stopped and #numbers > #ids then stopped = ids[#ids] end
  return stopped or ''
end

local set, go_on, linked = SETS[state], nil, {}
local member = string.match(ARGV[8], '^of:(%d+)$')
if member then
  go_on = through_flow(member, linked)
elseif state == STATE.dead then
  go_on = through_dead()
elseif set and call('ZCARD', KEY[set]) <= most_pages * PAGE then
  go_on = through_set(KEY[set])
else
  go_on = through_pages()
end
return {table.concat(answer), format('%.17g', now), go_on, linked}
