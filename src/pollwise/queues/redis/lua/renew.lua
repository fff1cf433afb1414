-- Renew leases, from now. ARGV: now, lease; then the claims, one after the other: number, token,
-- lengths of worker and progress, worker, progress.
-- An expired lease that nobody else has taken becomes valid again; that of a limited kind, if there is
-- room for it.
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

-- How many jobs count under a key, with those that this batch takes back.
local running_at = {}
local function running(key)
  if not running_at[key] then
    running_at[key] = call('ZCOUNT', key, '(' .. format('%.17g', now), '+inf')
  end
  return running_at[key]
end

-- Whether an expired lease may become valid again; then it counts.
local of_kinds = {}
local function take_back(job)
  local value = limits().of(names(job).kind)
  if not value then return true end
  local given = of_kinds[job.kind]
  if not given then
    given = #value > 1 and cjson.decode(sub(value, 2)) or {}
    of_kinds[job.kind] = given
  end
  local key = KEY.running .. job.kind
  local of_group = key .. '\0' .. limits().group_of(job)
  if given.most and running(key) >= given.most then return false end
  if given.most_each and running(of_group) >= given.most_each then return false end
  running_at[key], running_at[of_group] = running(key) + 1, running(of_group) + 1
  return true
end

local refused, to_cancel, by_id = {}, {}, {}
for n, job in ipairs(load(ids)) do
  job = by_id[ids[n]] or job
  by_id[ids[n]] = job
  if not held(job, tokens[n])
      or (job.state == STATE.ready or job.since <= now) and not take_back(job) then
    refused[#refused + 1] = n - 1
  else
    take_out(job, true)  -- first, so that a full server allows it
    local counted = job.state == STATE.leased and has(job, FLAG.counted)
      or job.state == STATE.ready and (names(job).grouped or limits().of(job.kind))
    job.state, job.since, job.worker = STATE.leased, until_, workers[n]
    job.flags = bit.band(job.flags, 255 - FLAG.lapsed)
    if counted then limits().count(job, until_) end
    if reports[n] then set_part(job, FLAG.progress, pack('>d', now) .. reports[n]) end
    if has(job, FLAG.cancel) then to_cancel[#to_cancel + 1] = n - 1 end
    add(KEY.leased, until_, job.id)
    save(job)
  end
end
flush()
return table.concat(refused, ',') .. ';' .. table.concat(to_cancel, ',')
