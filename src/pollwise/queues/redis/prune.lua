-- Delete finished jobs that were kept long enough. ARGV: now, how long, the maximum count.
local before = clock(ARGV[1]) - tonumber(ARGV[2])
local ids = call('ZRANGEBYSCORE', DONE, '-inf', before, 'LIMIT', 0, ARGV[3])
local old = {}
for n, job in ipairs(load(ids)) do
  remove(DONE, ids[n])
  if job then old[#old + 1] = job end
end
forget(old)
flush()
return #ids
