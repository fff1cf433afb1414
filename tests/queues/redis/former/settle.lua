-- End claims. ARGV: now, whether ended jobs are kept, key and number of the kept answer, how long it
-- is kept; then the settlements, one after the other: number, token, action (0 done, 1 retry, 2 dead,
-- 3 cancelled, 4 give back), whether it has an error, 1 if it has a result plus 2 if it has a time
-- for which its job is kept, delay or that time, length of the error, error; then the results.
-- Returns the refused ones: their places in the batch, as "3,7".
local imposed, keep, kept_at, number, keep_for, batch = unpack(ARGV, 1, 6)
local known = answer_of(kept_at, number)
if known then return known end
local now = clock(imposed)
local ENDS = {[0] = STATE.done, [2] = STATE.dead}
local settlements, ids, results = {}, {}, 6
local at, size = 1, #batch
while at <= size do
  local s, failed, more, error_size = {}
  s.id, s.token, s.action, failed, more, s.delay, error_size, at =
    unpack_bytes('>I8I8BBBdH', batch, at)
  if failed == 1 then s.error = sub(batch, at, at + error_size - 1) end
  at = at + error_size
  if more >= 2 then s.more = s.delay end
  if more % 2 == 1 then
    results = results + 1
    s.result = ARGV[results]
  end
  s.id = name_of(s.id)
  settlements[#settlements + 1] = s
  ids[#ids + 1] = s.id
end

local by_id, refused = {}, {}
for n, job in ipairs(load(ids)) do
  by_id[ids[n]] = by_id[ids[n]] or job
end
for n, s in ipairs(settlements) do
  local job = by_id[s.id]
  if not held(job, s.token) then
    refused[#refused + 1] = n - 1
  else
    take_out(job)
    job.token = job.token + 1
    job.flags = bit.band(job.flags, 255 - FLAG.lapsed)
    if s.error then note_error(job, now, s.error) end
    if s.action == 4 then job.attempt = job.attempt - 1 end
    if (s.action == 1 or s.action == 4) and not has(job, FLAG.cancel) then
      job.worker, job.run_at = '', now + s.delay
      await_due(job, now)
    else
      if s.result then set_part(job, FLAG.result, s.result) end
      finish(job, ENDS[s.action] or STATE.cancelled, now, keep, s.more)
    end
  end
end
flush()
local answer = table.concat(refused, ',')
keep_answer(kept_at, number, keep_for, answer)
return answer
