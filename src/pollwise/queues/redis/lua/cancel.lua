-- Uses flows/links.lua.
-- Cancel jobs: those that wait end, those that run are asked to. ARGV: now, how long ended jobs are
-- kept; then the numbers.
-- Returns the state of each job, or -1 if it does not exist.
local now, keep, ids, states = clock(ARGV[1]), ARGV[2], {}, {}
for at = 3, #ARGV do ids[#ids + 1] = ARGV[at] end
for n, job in ipairs(load(ids)) do
  if not job then
    states[n] = -1
  else
    if job.state == STATE.leased and job.since > now then
      take_out(job, true)  -- first, so that a full server allows it
      if has(job, FLAG.counted) then limits().count(job, job.since) end
      job.flags = bit.bor(job.flags, FLAG.cancel)
      add(KEY.leased, job.since, job.id)
      save(job)
    elseif job.state <= STATE.leased then
      take_out(job)
      job.worker = ''
      finish(job, STATE.cancelled, now, keep)
    end
    states[n] = job.state
  end
end
flush()
return states
