-- The links between the jobs of flows. …:flow:NAME is a hash:
--   <ID   1 if it is to run on failure, else 0, and the numbers of its predecessors; of each member
--   >ID   the numbers of its successors and, for each, whether it is to run on failure; until it is
--         done, cancelled or deleted
--   wID   for how many predecessors it waits, while it waits
--   dID   its delay from when it stops waiting
--   live  how many members are neither done nor cancelled
-- …:waiting has those that wait. …:cuts names cancelled jobs whose successors are still to be
-- cancelled, as NAME:ID.

-- The functions are made when a script first needs them, because most calls need none.
function links.use()
  if links.follow then return links end

  -- A script cancels no more successors after this many. What is left waits in `cuts`, and claims go
  -- on with it. Such a job cannot run meanwhile, because it is blocked. A job has fewer than 10,000
  -- successors, as many as a batch has jobs, so a script cancels fewer than 20,000.
  links.CUTS_MAX = 10000
  -- For how many seconds the ended jobs of a flow are shown after its end.
  links.SHOWN = 3600

  local function key_of(name) return base .. ':flow:' .. name end

  -- Give a new job its place in its flow. Returns true if it waits for no other job. `flows`
  -- gathers what `write` writes.
  function links.begin(job, jobs, flows)
    local flow = flows[job.flow]
    if not flow then
      flow = {live = 0, fields = {}, after = {}, order = {}}
      flows[job.flow] = flow
    end
    flow.live = flow.live + 1
    local fields, on_failure, count, before = flow.fields, string.byte(job.place), 0, {}
    for at = 2, #job.place, 4 do
      local other = jobs[unpack_bytes('>I4', job.place, at)].id
      local after = flow.after[other]
      if not after then
        after = {}
        flow.after[other] = after
        flow.order[#flow.order + 1] = other
      end
      after[#after + 1] = pack('>I8B', tonumber(job.id), on_failure)
      count = count + 1
      before[count] = pack('>I8', tonumber(other))
    end
    fields[#fields + 1] = '<' .. job.id
    fields[#fields + 1] = pack('>B', on_failure) .. table.concat(before)
    if count == 0 then return true end
    fields[#fields + 1] = 'w' .. job.id
    fields[#fields + 1] = count
    if job.delay then
      fields[#fields + 1] = 'd' .. job.id
      fields[#fields + 1] = format('%.17g', job.delay)
    end
    job.state, job.since, job.flags = STATE.blocked, job.run_at, FLAG.waits
    add(KEY.waiting, tonumber(job.id), job.id)
    save(job)
  end

  function links.write(flows)
    for name, flow in pairs(flows) do
      local fields = flow.fields
      for _, id in ipairs(flow.order) do
        fields[#fields + 1] = '>' .. id
        fields[#fields + 1] = table.concat(flow.after[id])
      end
      fields[#fields + 1] = 'live'
      fields[#fields + 1] = flow.live
      bulk('HSET', key_of(name), fields)
    end
  end

  -- An ended job of a flow is to run again.
  function links.come_back(job) redis.call('HINCRBY', key_of(job.flow), 'live', 1) end

  -- Jobs of flows ended: release or cancel those that wait for them, and what waits for these.
  function links.follow(ended)
    local call, now, keep = redis.call, links.now, links.keep
    local cuts, released, fewer, emptied = 0, {}, {}, {}

    -- Stop waiting. Returns the delay, or false, or nil if it did not wait.
    local function stop(key, id)
      local found = call('HMGET', key, 'w' .. id, 'd' .. id)
      if not found[1] then return nil end
      call('HDEL', key, 'w' .. id, 'd' .. id)
      return found[2]
    end

    local function release(key, id)
      local delay = stop(key, id)
      if delay ~= nil then released[#released + 1] = {id, tonumber(id), delay} end
    end

    local function cancel(key, id)
      if stop(key, id) == nil then return end
      local job = load({id})[1]
      if job and job.state == STATE.blocked then
        cuts = cuts + 1
        take_out(job)
        finish(job, STATE.cancelled, now, keep)
      end
    end

    local function each_after(list, act)
      for at = 1, #list, 9 do
        local number, on_failure = struct.unpack('>I8B', list, at)
        act(name_of(number), on_failure == 1)
      end
    end

    -- Count those of a key's successors that were done, so that each waits fewer by one call.
    local done = {}

    local function end_one(job)
      local key, id = key_of(job.flow), job.id
      local list = call('HGET', key, '>' .. id) or ''
      local over = job.gone or job.state > STATE.dead
      if over and job.linked then fewer[key] = (fewer[key] or 0) + 1 end
      if job.gone then
        emptied[key] = true
        call('HDEL', key, '<' .. id)
      end
      if job.state == STATE.done then
        local counts = done[key] or {}
        done[key] = counts
        each_after(list, function(next_id, on_failure)
          local entry = counts[next_id] or {0, on_failure}
          counts[next_id] = entry
          entry[1] = entry[1] + 1
        end)
      elseif not over then
        each_after(list, function(next_id, on_failure)
          if on_failure then release(key, next_id) end
        end)
      elseif cuts >= links.CUTS_MAX and list ~= '' then
        call('RPUSH', base .. ':cuts', job.flow .. ':' .. id)
        return
      else
        each_after(list, function(next_id) cancel(key, next_id) end)
      end
      if over then call('HDEL', key, '>' .. id, 'w' .. id, 'd' .. id) end
    end

    local function count_done()
      for key, counts in pairs(done) do
        for id, entry in pairs(counts) do
          if call('HEXISTS', key, 'w' .. id) == 1
              and call('HINCRBY', key, 'w' .. id, -entry[1]) <= 0 then
            if entry[2] then cancel(key, id) else release(key, id) end
          end
        end
      end
      done = {}
    end

    while ended do
      for _, job in ipairs(ended) do end_one(job) end
      count_done()
      ended = others.ended
      others.ended = nil
    end
    -- In put order, for those that have the same key.
    table.sort(released, function(a, b) return a[2] < b[2] end)
    for _, each in ipairs(released) do
      local job = load({each[1]})[1]
      if job and job.state == STATE.blocked then
        take_out(job)
        job.run_at = each[3] and now + tonumber(each[3]) or math.max(job.run_at, now)
        enter(job, now)
      end
    end
    for key, count in pairs(fewer) do
      if call('HINCRBY', key, 'live', -count) <= 0 then note('over', key) end
    end
    for key in pairs(emptied) do
      if call('HLEN', key) <= 1 then call('DEL', key) end
    end
  end

  -- Cancel the successors of cancelled jobs that an earlier script left.
  function links.go_on(now, keep)
    links.now, links.keep = now, keep
    for _, entry in ipairs(redis.call('LPOP', base .. ':cuts', 1000)) do
      local name, id = string.match(entry, '^(.*):(%d+)$')
      note('ended', {id = id, flow = name, state = STATE.cancelled})
    end
    flush()
  end

  -- Hide the jobs that have these keys from older scripts.
  function links.guard(keys)
    local heads, seen = {}, {}
    for _, id in ipairs(fetch(KEY.heads, keys)) do
      if id and not seen[id] then
        heads[#heads + 1] = id
        seen[id] = true
      end
    end
    for _, job in ipairs(load(heads)) do
      if job and not job.linked then
        job.linked = true
        save(job)
      end
    end
    flush()
  end

  -- Flows are over: keep their jobs only as long as others, but long enough to be seen.
  function links.let_go(keys)
    local call, now, keep = redis.call, links.now, tonumber(links.keep)
    for _, key in ipairs(keys) do
      local ids = {}
      for _, field in ipairs(call('HKEYS', key)) do
        if string.sub(field, 1, 1) == '<' then ids[#ids + 1] = string.sub(field, 2) end
      end
      for _, job in ipairs(load(ids)) do
        local over = job and job.state > STATE.dead and call('ZSCORE', KEY.results, job.id)
        over = over and tonumber(over)
        if over and over >= job.since + FLOW_KEPT then
          local set = KEY[SETS[job.state]]
          over = math.max(over - FLOW_KEPT, job.since + keep, now + links.SHOWN)
          add(KEY.results, over, job.id)
          if tonumber(call('ZSCORE', set, job.id) or 0) > now then add(set, over, job.id) end
        end
      end
    end
    flush()
  end

  return links
end
