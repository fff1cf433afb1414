-- The limits of kinds in a claim. limits/record.py describes them and the arithmetic.
--
-- What is kept for a kind: `running` (its leased jobs by the end of their leases, and the same for each
-- limit group), so that a lease that runs out leaves by itself; `turns` (full_at of its rate, how many
-- more jobs the group of the last turn may start, and that group); `full` (full_at by group); `circle`
-- (the groups to examine), `back` (those that come back into it, by the time) and `entered` ('+' if all
-- groups of the kind were entered in the circle, else from where on they are still to be).
--
-- Returns nil if no kind has limits, else two functions. Both work on a stream: the jobs of a kind that this claim may take.
-- kinds: those of the claim; others are added if all are meant (not named). most: how many jobs it takes
-- at most. real: `now` is the server's time. common: what it uses of common.lua; as locals from outside,
-- these would cost each claim that needs no limits.
local function with_limits(kinds, named, most, now, real, common)
  local KEY, STATE, ALONE, limits_known = unpack(common, 1, 4)
  local fetch, load, names, remove, add, flush, add_ready, bulk, name_of, limits = unpack(common, 5)
  local MOVED, SUSPECTS, GROUPS, FORGOTTEN, ENTERED = 1000, 100, 1000, 10, 1000
  local SLACK, RATE_PAUSE = 0.000001, 0.1
  local max, min, floor, huge = math.max, math.min, math.floor, math.huge
  local call, pack, unpack_bytes, sub = redis.call, struct.pack, struct.unpack, string.sub

  local limited = false
  if named then
    for n, found in ipairs(fetch(KEY.limited, kinds)) do
      limits_known[kinds[n]], limited = found, limited or found
    end
  else
    local listed, found = {}, call('HGETALL', KEY.limited)
    for _, kind in ipairs(kinds) do listed[kind] = true end
    for n = 1, #found, 2 do
      -- A version that knows no limits may have taken a kind with jobs in `lines` out of `kinds`.
      if not listed[found[n]] then kinds[#kinds + 1] = found[n] end
      limits_known[found[n]], limited = found[n + 1], true
    end
  end
  if not limited then return end
  local place_of, group_of = limits().place, limits().group_of

  local function rate_of(value)
    return value and {step = value[2] / value[1], burst = value[3]}
  end

  local function level(rate, full_at)
    return max(min(full_at, now + rate.burst * rate.step), now)
  end

  local function room_of(rate, full_at)
    local left = now + rate.burst * rate.step - level(rate, full_at)
    return min(floor((left + SLACK) / rate.step), rate.burst)
  end

  -- In how many seconds to claim again, if there is no room: not for each single start.
  local function wait_of(rate, full_at)
    local next_at = level(rate, full_at) - (rate.burst - 1) * rate.step
    return max(next_at - now, min(RATE_PAUSE, rate.burst * rate.step / 2))
  end

  -- It was set under a slower rate, or the clock was put back, so it has to be stored again.
  local function too_high(rate, full_at)
    return full_at > now + rate.burst * rate.step + SLACK
  end

  local function running(key)
    call('ZREMRANGEBYSCORE', key, '-inf', now)
    return call('ZCARD', key)
  end

  -- A group, with the room that its own limits leave.
  local function examine(stream, name)
    local group = {
      name = name, slots = huge, starts = huge, leased = 0, items = {}, at = 1, more = true,
    }
    if stream.most_each then
      group.slots = stream.most_each - running(KEY.running .. stream.kind .. '\0' .. name)
    end
    if stream.rate_each then
      group.full_at = tonumber(call('ZSCORE', KEY.full .. stream.kind, name) or 0)
      group.starts = room_of(stream.rate_each, group.full_at)
    end
    group.room = min(group.slots, group.starts)
    stream.seen[#stream.seen + 1] = group
    return group
  end

  -- Put the ready jobs of a kind into the line of their groups: those put before the groups took turns,
  -- or by a version that knows no groups.
  local function move_to_groups(stream)
    local found = call('ZRANGEBYSCORE', stream.key, '(' .. ALONE / 2, '+inf', 'LIMIT', 0, MOVED)
    local ids = {}
    for n, place_ in ipairs(found) do ids[n] = name_of((unpack_bytes('>I8', place_, 9))) end
    for n, job in ipairs(load(ids)) do
      remove(stream.key, found[n])
      if job and job.state == STATE.ready then
        add(KEY.lines .. names(job).kind, 0, place_of(job))
        limits().enter(job)
      end
    end
    flush()
    return #found == MOVED
  end

  -- Enter the next groups in the circle, if the limits of the kind changed; returns whether there are
  -- more. No name has characters below a space.
  local function enter_groups(kind)
    local from = call('HGET', KEY.entered, kind) or '-'
    if from == '+' then return end
    local key, groups = KEY.lines .. kind, {}
    local found = call('ZRANGEBYLEX', key, from, '+', 'LIMIT', 0, 1)
    while found[1] and #groups < 2 * ENTERED do
      local name = sub(found[1], 1, #found[1] - 19)
      groups[#groups + 1], groups[#groups + 2] = 0, name
      from = '[' .. name .. '\1'
      found = call('ZRANGEBYLEX', key, from, '+', 'LIMIT', 0, 1)
    end
    bulk('ZADD', KEY.circle .. kind, groups)
    call('HSET', KEY.entered, kind, found[1] and from or '+')
    return found[1] ~= nil
  end

  -- The group that comes back into the circle first, and when.
  local function first_back(kind)
    local found = call('ZRANGE', KEY.back .. kind, 0, 0, 'WITHSCORES')
    return found[1] and tonumber(found[2])
  end

  -- Enter groups again whose rate allows the next start; all of them, if the clock was set back.
  -- Returns whether there may be more.
  local function come_back(kind, rate)
    local first = first_back(kind)
    if not first or first > now and first <= now + max(rate.step, RATE_PAUSE) + SLACK then return end
    local until_, groups = first <= now and now or '+inf', {}
    local found = call('ZRANGEBYSCORE', KEY.back .. kind, '-inf', until_, 'LIMIT', 0, ENTERED)
    for _, name in ipairs(found) do groups[#groups + 1], groups[#groups + 2] = 0, name end
    bulk('ZREM', KEY.back .. kind, found)
    bulk('ZADD', KEY.circle .. kind, groups)
    return #found == ENTERED
  end

  -- The reverse of `move_to_groups`. An entry may be old, if a version that knows no groups changed its job.
  local function move_back(kind, text)
    local key = KEY.lines .. kind
    local found, ids = call('ZRANGE', key, 0, MOVED - 1), {}
    for n, place_ in ipairs(found) do ids[n] = name_of((unpack_bytes('>I8', place_, #place_ - 7))) end
    for n, job in ipairs(load(ids)) do
      remove(key, found[n])
      if job and job.state == STATE.ready and names(job).kind == kind
          and place_of(job) == found[n] then
        add_ready(job)
      end
    end
    flush()
    if #found == MOVED then return true end
    if text == '' then
      call('HDEL', KEY.limited, kind)
    else
      call('HSET', KEY.limited, kind, 'k' .. text)
    end
  end

  -- The first job that is to be claimed alone, if there is room for it.
  local function suspect_of(stream)
    local found = call('ZRANGE', stream.key, 0, SUSPECTS - 1, 'WITHSCORES')
    for n = 1, #found, 2 do
      if tonumber(found[n + 1]) > ALONE / 2 then return end
      local job = load({name_of((unpack_bytes('>I8', found[n], 9)))})[1]
      local group = job and examine(stream, group_of(job))
      if group and group.room > 0 then
        stream.places, stream.suspect, group.place = {found[n], found[n + 1]}, group, found[n]
        return true
      elseif group and group.slots > 0 then
        stream.wait = min(stream.wait or huge, wait_of(stream.rate_each, group.full_at))
      end
    end
  end

  local function items_in(found)
    local items = {}
    for n, member in ipairs(found) do
      local priority, run_at, number = unpack_bytes('>HdI8', member, #member - 17)
      items[n] = {
        member = member, score = priority - 32768, run_at = run_at, number = number,
        name = sub(member, 1, #member - 19),
      }
    end
    return items
  end

  -- Choose jobs in turns over the groups, from the kept turn.
  local function take_turns(stream, room)
    local key, circle, order, ring = KEY.lines .. stream.kind, KEY.circle .. stream.kind, {}, {}
    local start = stream.turn .. (stream.left > 0 and '' or '\1')
    local low, high, wrapped, done = '[' .. start, '+', false, false
    local chunk = min(room + 1, 64)

    -- Let a group give up to this many; returns whether it may be able to give more.
    local function give(group, allowed, wanted)
      local count = min(allowed, group.room, room)
      while count > 0 do
        if group.at > #group.items then
          if not group.more then return false end
          local asked, last = min(max(wanted, count), 256), group.items[#group.items]
          local after = last and '(' .. last.member or '[' .. group.name .. '\0'
          local found =
            call('ZRANGEBYLEX', key, after, '(' .. group.name .. '\1', 'LIMIT', 0, asked)
          group.items, group.at, group.more = items_in(found), 1, #found == asked
          if #found == 0 then return false end
        end
        local item = group.items[group.at]
        allowed, count, room = allowed - 1, count - 1, room - 1
        group.at, group.room = group.at + 1, group.room - 1
        item.group, item.left = group, allowed
        order[#order + 1] = item
      end
      return group.room > 0 and (group.at <= #group.items or group.more)
    end

    while room > 0 and not done do
      local found = call('ZRANGEBYLEX', circle, low, high, 'LIMIT', 0, chunk)
      for _, name in ipairs(found) do
        if room == 0 then break end
        if #stream.seen == GROUPS then
          stream.moved, done = stream.seen[GROUPS].name, true
          break
        end
        local group = examine(stream, name)
        local allowed = stream.weights[name] or 1
        if #stream.seen == 1 and name == stream.turn and stream.left > 0 then
          allowed = min(allowed, stream.left)
        end
        if give(group, allowed, 4) then ring[#ring + 1] = group end
        low = '[' .. name .. '\1'
      end
      if #found < chunk and not done then
        done, wrapped, low, high = wrapped, true, '-', '(' .. start
      end
      chunk = 64
    end
    while room > 0 and #ring > 0 and not stream.moved do
      local left = {}
      for _, group in ipairs(ring) do
        local wanted = math.ceil(room / #ring)
        if give(group, stream.weights[group.name] or 1, wanted) then left[#left + 1] = group end
      end
      ring = left
    end

    local sorted = {}
    for n, item in ipairs(order) do sorted[n] = item end
    if #kinds > 1 then  -- they compete with other kinds
      table.sort(sorted, function(a, b)
        if a.score ~= b.score then return a.score < b.score end
        if a.run_at ~= b.run_at then return a.run_at < b.run_at end
        return a.number < b.number
      end)
    end
    for _, item in ipairs(sorted) do
      stream.places[#stream.places + 1] = sub(item.member, -16)
      stream.places[#stream.places + 1] = item.score
    end
    stream.order = order
  end

  -- The stream of a kind, given what `limited` says of it. stream.again: whether jobs remain to be moved.
  local function open(kind, value)
    local flag, text = sub(value, 1, 1), sub(value, 2)
    local stream = {
      kind = kind, key = KEY.ready .. kind, places = {}, at = 1, read = 0, taken = 0, leased = 0,
      seen = {}, slots = huge, starts = huge, full_at = 0, left = 0, turn = '',
    }
    if flag == 'm' then stream.again = move_back(kind, text) end
    if text == '' then return stream end
    local given, at = cjson.decode(text), nil
    stream.limited, stream.weights, stream.most_each = true, given.weights or {}, given.most_each
    stream.rate, stream.rate_each = rate_of(given.rate), rate_of(given.rate_each)
    stream.by_turn = flag == 'g'
    local state = (stream.by_turn or stream.rate) and call('HGET', KEY.turns, kind)
    if state then
      stream.full_at, stream.left, at = unpack_bytes('>dI4', state)
      stream.turn = sub(state, at)
    end
    if given.most then stream.slots = given.most - running(KEY.running .. kind) end
    if stream.rate then stream.starts = room_of(stream.rate, stream.full_at) end
    local room = min(most, stream.slots, stream.starts)
    if room < 1 then return stream end
    if not stream.by_turn then
      stream.places = call('ZRANGE', stream.key, 0, room - 1, 'WITHSCORES')
    else
      stream.mixed = call('EXISTS', stream.key) == 1
      if stream.mixed and suspect_of(stream) then return stream end
      stream.seen = {}
      if stream.mixed then stream.again = move_to_groups(stream) end
      stream.again = enter_groups(kind) or stream.again
      if stream.rate_each then
        stream.again = come_back(kind, stream.rate_each) or stream.again
      end
      take_turns(stream, room)
    end
    return stream
  end

  -- Charge a kind for what was leased. Returns in how many seconds another claim may find more, if jobs
  -- wait for a rate, or were not examined.
  local function charge(stream)
    local kind, leased = stream.kind, stream.leased
    local turn, left, full_at = stream.turn, stream.left, stream.full_at
    if stream.rate and (leased > 0 or too_high(stream.rate, full_at)) then
      full_at = level(stream.rate, full_at) + leased * stream.rate.step
    end
    if stream.order then
      local last = stream.order[stream.taken]
      if stream.moved and stream.taken == #stream.order then
        turn, left = stream.moved, 0
      elseif last then
        turn, left = last.name, last.left
      end
    end
    if turn ~= stream.turn or left ~= stream.left or full_at ~= stream.full_at then
      call('HSET', KEY.turns, kind, pack('>dI4', full_at, left) .. turn)
    end
    if not (stream.rate or stream.by_turn) then return end
    local wait, slots = stream.wait, stream.slots - leased
    local waits = slots > 0 and call('EXISTS', KEY.lines .. kind, stream.key) > 0
    if waits and stream.rate and room_of(stream.rate, full_at) < 1 then
      wait = wait_of(stream.rate, full_at)
      waits = false
    elseif waits and stream.moved then
      wait = 0
    end
    if stream.order then  -- those that were not leased wait again
      for n = stream.taken + 1, #stream.order do stream.order[n].group.waits = true end
    end
    local changed, gone, back = {}, {}, {}
    for _, group in ipairs(stream.seen) do
      local full = group.full_at
      if full and (group.leased > 0 or too_high(stream.rate_each, full)) then
        full = level(stream.rate_each, full) + group.leased * stream.rate_each.step
        changed[#changed + 1] = full
        changed[#changed + 1] = group.name
      end
      local more = group.at <= #group.items or group.more or group.waits
      if stream.order and (not more or group.slots <= group.leased) then
        gone[#gone + 1] = group.name
      elseif stream.order and group.starts <= group.leased then
        gone[#gone + 1] = group.name
        back[#back + 1] = now + wait_of(stream.rate_each, full)
        back[#back + 1] = group.name
      end
    end
    bulk('ZREM', KEY.circle .. kind, gone)
    if not stream.rate_each then return wait end
    local key = KEY.full .. kind
    bulk('ZADD', KEY.back .. kind, back)
    bulk('ZADD', key, changed)
    if real and #changed > 0 then
      local longest = math.ceil(2000 * stream.rate_each.burst * stream.rate_each.step)
      if call('PTTL', key) < longest then call('PEXPIRE', key, longest) end
    end
    bulk('ZREM', key, call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, #changed + FORGOTTEN))
    local first = waits and first_back(kind)
    return first and min(wait or huge, max(first - now, 0)) or wait
  end

  return open, charge
end
