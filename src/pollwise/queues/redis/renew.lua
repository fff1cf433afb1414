-- Renew leases, from now. ARGV: now, lease; then number, token and worker of each claim.
-- An expired lease that nobody else has taken becomes valid again.
-- Returns the refused ones: their places in the batch, as "3,7".
local now, ids = clock(ARGV[1]), {}
local until_ = now + tonumber(ARGV[2])
for at = 3, #ARGV, 3 do ids[#ids + 1] = ARGV[at] end
local refused, by_id = {}, {}
for n, job in ipairs(load(ids)) do
  job = by_id[ids[n]] or job
  by_id[ids[n]] = job
  if not held(job, tonumber(ARGV[3 * n + 1])) then
    refused[#refused + 1] = n - 1
  else
    take_out(job)  -- first, so that a full server allows it
    job.state, job.since, job.worker = STATE.leased, until_, ARGV[3 * n + 2]
    add(LEASED, until_, job.id)
    save(job)
  end
end
flush()
return table.concat(refused, ',')
