-- Uses flows/links.lua.
-- Retry ended jobs, delete them, or read how they ended. "compensated" returns dead jobs whose failure has
-- started a job of `on_failure`. ARGV: now, what, how long ended jobs are kept,
-- the number to start after, the maximum count; then the numbers, unless all are meant. To prune, the
-- number is how long they are kept, or '' if they are not.
-- What: "retry" (all: dead ones), "drop" (only dead ones), "drop_ended", "prune" (done and cancelled ones) or "read".
-- Returns how many, and the number to continue after, or '' at the end; for a prune, another text if
-- more may be due. "read" returns for each named job that has ended, or does not exist: its number, its
-- state or -1, and, if it exists, its kind, its errors and its result.
local now, what, after, most = clock(ARGV[1]), ARGV[2], ARGV[4], tonumber(ARGV[5])
links.now, links.keep = now, ARGV[3]
local ids, go_on = {}, ''

local function endings()
  local answer = {}
  for n, job in ipairs(load(ids)) do
    local over = job and job.state > STATE.dead and call('ZSCORE', KEY.results, job.id)
    if not job or (over and tonumber(over) <= now) then
      answer[#answer + 1] = {ids[n], -1}
    elseif job.state >= STATE.dead then
      answer[#answer + 1] = {
        ids[n], job.state, names(job).kind, part_of(job, FLAG.errors), part_of(job, FLAG.result),
      }
    end
  end
  return answer
end

-- Delete limit groups of jobs that a version without limits deleted, a portion at a time.
local function sweep_groups()
  local at = call('HGET', KEY.meta, 'swept') or '0'
  local cursor, found = unpack(call('HSCAN', KEY.groups, at, 'COUNT', 100))
  local named, gone = {}, {}
  for n = 1, #found, 2 do named[#named + 1] = found[n] end
  for n, bytes in ipairs(fetch(KEY.jobs, named)) do
    if not bytes then gone[#gone + 1] = named[n] end
  end
  bulk('HDEL', KEY.groups, gone)
  if cursor == '0' then
    call('HDEL', KEY.meta, 'swept')
  else
    call('HSET', KEY.meta, 'swept', cursor)
  end
end

if what == 'prune' then
  if call('EXISTS', limits() and KEY.groups) == 1 then sweep_groups() end
  -- The scores of jobs that stay for their results are the times when these are over, so that each
  -- is examined once.
  if after ~= '' then
    local before, longer = now - tonumber(after), 0
    for _, key in ipairs({KEY.done, KEY.cancelled}) do
      for _, id in ipairs(call('ZRANGEBYSCORE', key, '-inf', before, 'LIMIT', 0, most - #ids)) do
        local over = tonumber(call('ZSCORE', KEY.results, id) or now)
        if over > now then
          longer = longer + 1
          add(key, over, id)
        else
          ids[#ids + 1] = id
          remove(key, id)
        end
      end
    end
    flush()
    if #ids + longer >= most then go_on = 'more' end
  end
  local seen = {}
  for _, id in ipairs(ids) do seen[id] = true end
  for _, id in ipairs(call('ZRANGEBYSCORE', KEY.results, '-inf', now, 'LIMIT', 0, most)) do
    if not seen[id] then ids[#ids + 1] = id end
    remove(KEY.results, id)
  end
elseif #ARGV > 5 then
  for at = 6, #ARGV do ids[#ids + 1] = ARGV[at] end
else
  ids = call('ZRANGEBYSCORE', KEY.dead, '(' .. after, '+inf', 'LIMIT', 0, most)
  if #ids == most then go_on = ids[most] end
end
if what == 'read' then return endings() end
if what == 'compensated' then
  local found = {}
  for _, job in ipairs(load(ids)) do
    if job and job.state == STATE.dead and names(job).flow then
      local key, started = base .. ':flow:' .. job.flow, {}
      local list = call('HGET', key, '>' .. job.id) or ''
      for at = 1, #list, 9 do
        local number, on_failure = struct.unpack('>I8B', list, at)
        local id = name_of(number)
        if on_failure == 1 and call('HEXISTS', key, 'w' .. id) == 0 then started[#started + 1] = id end
      end
      for _, other in ipairs(load(started)) do
        if other and other.state ~= STATE.cancelled then
          found[#found + 1] = job.id
          break
        end
      end
    end
  end
  return {found, go_on}
end
local count = 0
for _, job in ipairs(load(ids)) do
  if job and job.state >= STATE.dead and (what ~= 'drop' or job.state == STATE.dead)
      and (what ~= 'prune' or job.state > STATE.dead) then
    count = count + 1
    take_out(job)
    if what == 'retry' then
      job.attempt, job.token, job.run_at = 0, job.token + 1, now
      clear_part(job, FLAG.progress)
      clear_part(job, FLAG.result)
      job.flags = bit.band(job.flags, FLAG.errors)  -- never claimed, for all that follows
      enter(job, now)
      if job.flow and not job.linked then links.use().come_back(job) end
    else
      note('gone', job)
    end
  end
end
flush()
return {count, go_on}
