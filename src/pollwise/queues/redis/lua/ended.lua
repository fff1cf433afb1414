-- Retry ended jobs, or delete them. ARGV: now, what, the number to start after or how long jobs are
-- kept, the maximum count; then the numbers, unless all are meant.
-- What: "retry" (all: dead ones), "drop" (only dead ones) or "prune" (done and cancelled ones).
-- Returns how many, and the number to continue after, or '' at the end.
local now, what, after, most = clock(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])
local ids, go_on = {}, ''
if what == 'prune' then
  local before = now - tonumber(after)
  for _, key in ipairs({KEY.done, KEY.cancelled}) do
    for _, id in ipairs(call('ZRANGEBYSCORE', key, '-inf', before, 'LIMIT', 0, most - #ids)) do
      ids[#ids + 1] = id
      remove(key, id)
    end
  end
elseif #ARGV > 4 then
  for at = 5, #ARGV do ids[#ids + 1] = ARGV[at] end
else
  ids = call('ZRANGEBYSCORE', KEY.dead, '(' .. after, '+inf', 'LIMIT', 0, most)
  if #ids == most then go_on = ids[most] end
end
local count = 0
for _, job in ipairs(load(ids)) do
  if job and job.state >= STATE.dead and (what ~= 'drop' or job.state == STATE.dead) then
    count = count + 1
    take_out(job)
    if what == 'retry' then
      job.attempt, job.token, job.run_at = 0, job.token + 1, now
      clear_part(job, FLAG.progress)
      clear_part(job, FLAG.result)
      job.flags = bit.band(job.flags, FLAG.errors)  -- never claimed, for all that follows
      enter(job, now)
    else
      note('gone', job)
    end
  end
end
flush()
return {count, go_on}
