-- Renew leases, from now. ARGV: now, lease; then the claims, one after the other: number, token,
-- lengths of worker and progress, worker, progress.
-- An expired lease that nobody else has taken becomes valid again.
-- Returns the refused ones and those to cancel: their places in the batch, as "3,7;2".
local now, batch = clock(ARGV[1]), ARGV[3]
local until_ = now + tonumber(ARGV[2])
local ids, tokens, workers, reports = {}, {}, {}, {}
local at, size, count = 1, #batch, 0
while at <= size do
  local number, worker, progress
  count = count + 1
  number, tokens[count], worker, progress, at = unpack_bytes('>I8I8HH', batch, at)
  ids[count] = name_of(number)
  workers[count] = sub(batch, at, at + worker - 1)
  at = at + worker
  if progress > 0 then reports[count] = sub(batch, at, at + progress - 1) end
  at = at + progress
end

local refused, to_cancel, by_id = {}, {}, {}
for n, job in ipairs(load(ids)) do
  job = by_id[ids[n]] or job
  by_id[ids[n]] = job
  if not held(job, tokens[n]) then
    refused[#refused + 1] = n - 1
  else
    take_out(job)  -- first, so that a full server allows it
    job.state, job.since, job.worker = STATE.leased, until_, workers[n]
    job.flags = bit.band(job.flags, 255 - FLAG.lapsed)
    if reports[n] then set_part(job, FLAG.progress, pack('>d', now) .. reports[n]) end
    if has(job, FLAG.cancel) then to_cancel[#to_cancel + 1] = n - 1 end
    add(KEY.leased, until_, job.id)
    save(job)
  end
end
flush()
return table.concat(refused, ',') .. ';' .. table.concat(to_cancel, ',')
