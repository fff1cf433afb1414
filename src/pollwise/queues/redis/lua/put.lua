-- Uses flows/links.lua.
-- Put jobs, all or none. ARGV: now, key and number of the kept answer, how long it is kept, the
-- channel, the message, the layout's version; then each job as (how, when: 0 now, 1 after a delay,
-- 2 at a time; plus 4 if it replaces the job that has its `unique`) and its tail, followed by its body
-- if that is separate, by its limit group if it has one, and, if it is part of a flow, by its place: 1 if
-- it is to run on failure, and the places of its predecessors among these jobs, from 1.
-- Returns "first;i=id,…": the new jobs are numbered from `first`, and the i-th is already job `id`, or
-- replaced it: `i=rid`. Or, if a `unique` is taken by a job with another text, all of these as {i, id,
-- kind, payload, …}; if it cannot be replaced, its key is in the place of the payload.
local imposed, kept_at, number, keep_for, channel, message, layout = unpack(ARGV, 1, 7)
local known = answer_of(kept_at, number)
if known then return known end
local now = clock(imposed)
local jobs, uniques, with_unique = {}, {}, {}
local at = 8
while ARGV[at] do
  local bytes = ARGV[at]
  local how, when = unpack_bytes('>Bd', bytes)
  local job = names({tail = sub(bytes, 10), flags = 0, attempt = 0})
  job.created_at, job.run_at, job.replaces = now, now, how >= 4
  how = how % 4
  if how == 1 then job.run_at = now + when elseif how == 2 then job.run_at = math.max(when, now) end
  if job.form % 2 == 1 then
    at = at + 1
    job.body = ARGV[at]
  end
  job.group = ''
  if job.grouped then
    at = at + 1
    job.group = ARGV[at]
  end
  if job.flow then
    at = at + 1
    job.place, job.delay = ARGV[at], how == 1 and when
  end
  jobs[#jobs + 1] = job
  if job.unique then
    uniques[#uniques + 1] = job.unique
    with_unique[#with_unique + 1] = #jobs
  end
  at = at + 1
end

-- The payload of a job: its body without the headers.
local function payload_of(job)
  local body = job.body or sub(job.tail, job.body_at)
  if job.form % 4 < 2 then return body end
  local size, at_ = unpack_bytes('>H', body)
  return sub(body, at_ + size)
end

local twins, differing, replaced = {}, {}, {}
for n, id in ipairs(fetch(KEY.unique, uniques)) do
  local twin = id and load({id})[1]
  if twin then
    local place_in_batch = with_unique[n]
    local job = jobs[place_in_batch]
    names(twin)
    if twin.form % 2 == 1 then twin.body = call('HGET', KEY.payloads, id) or '' end
    local payload, same = payload_of(twin)
    if job.replaces then
      payload, same = twin.key or '', twin.kind == job.kind and twin.key == job.key
      replaced[#replaced + 1] = {job, twin}
      if twin.state < STATE.leased then twins[place_in_batch] = 'r' .. id end
    else
      same = twin.kind == job.kind and payload == payload_of(job)
      if same then twins[place_in_batch] = id end
    end
    if not same then
      for _, part in ipairs({place_in_batch - 1, id, twin.kind, payload}) do
        differing[#differing + 1] = part
      end
    end
  end
end
if #differing > 0 then return differing end

-- A job that waits is replaced; one that is due, and is to run now, keeps its place. One that runs or
-- has ended gives its `unique` up.
local waited = 0
for _, pair in ipairs(replaced) do
  local job, twin = pair[1], pair[2]
  if twin.state < STATE.leased then
    waited = waited + 1
    take_out(twin)
    if twin.form % 2 == 1 and not job.body then call('HDEL', KEY.payloads, twin.id) end
    if job.body then call('HSET', KEY.payloads, twin.id, job.body) end
    if twin.grouped or job.grouped then
      call('HDEL', limits() and KEY.groups, twin.id)
      if job.grouped then call('HSET', KEY.groups, twin.id, job.group) end
    end
    if job.run_at <= now then job.run_at = math.min(twin.run_at, now) end
    twin.tail, twin.form, twin.priority, twin.run_at = job.tail, job.form, job.priority, job.run_at
    twin.grouped, twin.group = job.grouped, job.group
    -- Two more, as a settlement adds one.
    twin.attempt, twin.token = 0, twin.token + 2
    twin.flags = bit.band(twin.flags, 255 - FLAG.lapsed - FLAG.again)
    if twin.state == STATE.blocked then
      twin.since = twin.run_at
      add(KEY.blocked, 0, place_in_line(twin.key, twin.id))
      save(twin)
    else
      await_due(twin, now)
    end
  else
    free_unique(twin)
    save(twin)
  end
end
if #replaced > 0 then flush() end

local fresh = {}
for n, job in ipairs(jobs) do
  if not twins[n] then fresh[#fresh + 1] = job end
end
local first = 0
if #fresh > 0 then
  local last = call('HINCRBY', KEY.meta, 'last', #fresh)
  first = last - #fresh + 1
  local token = token_at(now)
  local payloads, unique_ids, groups, numbers, flows = {}, {}, {}, {}, {}
  for n, job in ipairs(fresh) do
    numbers[n] = first + n - 1
    job.id, job.token = name_of(numbers[n]), token
    if not job.flow or links.use().begin(job, jobs, flows) then enter(job, now) end
    if job.body then
      payloads[#payloads + 1] = job.id
      payloads[#payloads + 1] = job.body
    end
    if job.grouped then
      groups[#groups + 1] = job.id
      groups[#groups + 1] = job.group
    end
    if job.unique then
      unique_ids[#unique_ids + 1] = job.unique
      unique_ids[#unique_ids + 1] = job.id
    end
  end
  if first == 1 or next(flows) then call('HSET', KEY.meta, 'layout', layout) end
  flush()
  if next(flows) then links.use().write(flows) end
  bulk('HSET', KEY.payloads, payloads)
  bulk('HSET', KEY.unique, unique_ids)
  if groups[1] then bulk('HSET', limits() and KEY.groups, groups) end
  count_pages(numbers, 1)
end

local already = {}
for place_in_batch, id in pairs(twins) do
  already[#already + 1] = (place_in_batch - 1) .. '=' .. id
end
local answer = name_of(first) .. ';' .. table.concat(already, ',')
keep_answer(kept_at, number, keep_for, answer)
if #fresh + waited > 0 then publish(channel, message) end
return answer
