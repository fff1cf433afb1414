-- Retry or drop dead jobs. ARGV: now, "retry" or "drop", the number to start after, the maximum
-- count; then the numbers, unless all are meant.
-- Returns how many, and the number to continue after, or '' at the end.
local now, what, after, most = clock(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])
local ids, go_on = {}, ''
if #ARGV > 4 then
  for at = 5, #ARGV do ids[#ids + 1] = ARGV[at] end
else
  ids = call('ZRANGEBYSCORE', DEAD, '(' .. after, '+inf', 'LIMIT', 0, most)
  if #ids == most then go_on = ids[most] end
end
local dead = {}
for _, job in ipairs(load(ids)) do
  if job and job.state == STATE.dead then
    dead[#dead + 1] = job
    remove(DEAD, job.id)
    if what == 'retry' then
      job.attempt, job.token, job.run_at = 0, job.token + 1, now
      enter(job, now)
    end
  end
end
if what == 'drop' then forget(dead) end
flush()
return {#dead, go_on}
