-- End claims. ARGV: now, whether finished jobs are kept, key and number of the kept answer, how
-- long it is kept; then the settlements, one after the other: number, token, action (0 done,
-- 1 retry, 2 dead), whether it counts, whether it has an error, delay, length of the error, error.
-- Returns the refused ones: their places in the batch, as "3,7".
local imposed, keep, kept_at, number, keep_for, batch = unpack(ARGV, 1, 6)
local known = answer_of(kept_at, number)
if known then return known end
local now = clock(imposed)
local settlements, ids = {}, {}
local at, size = 1, #batch
while at <= size do
  local s, error_size = {}
  s.id, s.token, s.action, s.counted, s.failed, s.delay, error_size, at =
    unpack_bytes('>I8I4BBBdH', batch, at)
  s.error = sub(batch, at, at + error_size - 1)
  at = at + error_size
  s.id = name_of(s.id)
  settlements[#settlements + 1] = s
  ids[#ids + 1] = s.id
end

local by_id, refused, changed, gone, freed = {}, {}, {}, {}, {}
for n, job in ipairs(load(ids)) do
  by_id[ids[n]] = by_id[ids[n]] or job
end
for n, s in ipairs(settlements) do
  local job = by_id[s.id]
  if not held(job, s.token) then
    refused[#refused + 1] = n - 1
  else
    take_out(job)
    job.token, job.worker = job.token + 1, ''
    if s.failed == 1 then job.failed, job.error = 1, s.error end
    if s.action == 1 then
      if s.counted == 0 then job.attempt = job.attempt - 1 end
      job.run_at = now + s.delay
      await_due(job, now)
    else
      names(job)
      if job.key then freed[#freed + 1] = job.key end
      job.since = now
      if s.action == 2 then
        job.state = STATE.dead
        add(DEAD, tonumber(job.id), job.id)
        save(job)
      elseif keep == '1' then
        job.state = STATE.done
        add(DONE, now, job.id)
        save(job)
      else
        by_id[s.id] = false
        gone[#gone + 1] = job
      end
    end
  end
end
forget(gone)
flush()
for _, key in ipairs(freed) do free(key) end
flush()
local answer = table.concat(refused, ',')
keep_answer(kept_at, number, keep_for, answer)
return answer
