-- Returns ready, delayed, blocked, leased, dead, done, cancelled, and the age of the oldest ready job
-- or ''.
-- Overdue jobs count as ready.
local now = clock(ARGV[1])
local ready, oldest = 0, nil

local function older(run_at) if not oldest or run_at < oldest then oldest = run_at end end

for _, kind in ipairs(call('SMEMBERS', KEY.kinds)) do
  local key = KEY.ready .. kind
  ready = ready + call('ZCARD', key)
  -- The first of each priority is its oldest.
  local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')
  while first[1] do
    older((unpack_bytes('>d', first[1])))
    first = call('ZRANGEBYSCORE', key, '(' .. first[2], '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  end
end
local counts = {}
for _, key in ipairs({KEY.delayed, KEY.leased}) do
  local over = call('ZCOUNT', key, '-inf', now)
  counts[key] = call('ZCARD', key) - over
  ready = ready + over
  local at = 0
  while at < over do
    for _, job in ipairs(load(call('ZRANGE', key, at, math.min(at + 999, over - 1)))) do
      if job then older(job.run_at) end
    end
    at = key == KEY.delayed and over or at + 1000  -- delayed ones are sorted by time
  end
end
return {
  ready, counts[KEY.delayed], call('ZCARD', KEY.blocked), counts[KEY.leased],
  call('ZCARD', KEY.dead), call('ZCARD', KEY.done), call('ZCARD', KEY.cancelled),
  oldest and format('%.17g', math.max(now - oldest, 0)) or '',
}
