-- How the limits of a kind are used. ARGV: now, kind, how many groups and jobs to read at most.
-- Returns the time, how many of its jobs run, how many wait, and full_at of its rate; and if its limit
-- groups take turns, for each of them the name, how many of its jobs run and wait, and its full_at.
limits()
local now, kind, most = clock(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local waiting, running, ready = KEY.lines .. kind, KEY.running .. kind, KEY.ready .. kind
local by_group, order = {}, {}

local function group(name)
  local found = by_group[name]
  if not found then
    found = {name = name, running = 0, waiting = 0}
    by_group[name] = found
    order[#order + 1] = found
  end
  return found
end

local full_at, state = 0, call('HGET', KEY.turns, kind)
if state then full_at = unpack_bytes('>d', state) end
local answer = {
  format('%.17g', now), call('ZCARD', running), call('ZCARD', waiting) + call('ZCARD', ready),
  format('%.17g', full_at),
}
if sub(limits().of(kind) or '', 1, 1) ~= 'g' then return answer end

local found = call('ZRANGEBYLEX', waiting, '-', '+', 'LIMIT', 0, 1)
while found[1] and #order < most do
  local name = sub(found[1], 1, #found[1] - 19)
  group(name).waiting = call('ZLEXCOUNT', waiting, '[' .. name .. '\0', '(' .. name .. '\1')
  found = call('ZRANGEBYLEX', waiting, '[' .. name .. '\1', '+', 'LIMIT', 0, 1)
end
local ids = {}
for n, place_ in ipairs(call('ZRANGE', ready, 0, most - 1)) do
  ids[n] = name_of((unpack_bytes('>I8', place_, 9)))
end
for _, job in ipairs(load(ids)) do
  if job then
    local of_job = group(limits().group_of(job))
    of_job.waiting = of_job.waiting + 1
  end
end
local leased = call('ZREVRANGE', running, 0, most - 1)
for _, name in ipairs(fetch(KEY.groups, leased)) do group(name or '') end
for _, each in ipairs(order) do
  answer[#answer + 1] = each.name
  answer[#answer + 1] = call('ZCARD', running .. '\0' .. each.name)
  answer[#answer + 1] = each.waiting
  answer[#answer + 1] = call('ZSCORE', KEY.full .. kind, each.name) or '0'
end
return answer
