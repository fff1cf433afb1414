-- The history of a queue: read ranges of it, or replace rows.
-- ARGV: 'read', then level, since, until and limit ('' for none) of each range. Returns for each range
-- how many rows it has, then their times, writers and values, one after the other.
-- ARGV: 'replace', how long rows are kept in seconds or '', how many old rows, level, time and writer
-- of each, then level, time, writer and value of each new row. Returns 1; or 0, and changes nothing,
-- if an old row is not there any more, or a new one is there and not among the old.
local answer = {}
if ARGV[1] == 'read' then
  for n = 2, #ARGV, 4 do
    local key = KEY.history .. ARGV[n]
    local range = {key, ARGV[n + 1], '(' .. ARGV[n + 2]}
    if ARGV[n + 3] ~= '' then
      range[4], range[5], range[6] = 'LIMIT', 0, ARGV[n + 3]
    end
    local names = call('ZRANGEBYSCORE', unpack(range))
    local values = fetch(key .. ':rows', names)
    answer[#answer + 1] = #names
    for place, name in ipairs(names) do
      local at, writer = string.match(name, '^(%d+) (.*)$')
      answer[#answer + 1] = tonumber(at)
      answer[#answer + 1] = writer
      answer[#answer + 1] = values[place]
    end
  end
  return answer
end

local kept, old = ARGV[2], tonumber(ARGV[3])
local gone = {}
for n = 4, 3 * old + 3, 3 do
  local key, name = KEY.history .. ARGV[n], ARGV[n + 1] .. ' ' .. ARGV[n + 2]
  if call('HEXISTS', key .. ':rows', name) == 0 then return 0 end
  gone[key .. ' ' .. name] = true
end
for n = 3 * old + 4, #ARGV, 4 do
  local key, name = KEY.history .. ARGV[n], ARGV[n + 1] .. ' ' .. ARGV[n + 2]
  if not gone[key .. ' ' .. name] and call('HEXISTS', key .. ':rows', name) == 1 then return 0 end
end
for n = 4, 3 * old + 3, 3 do
  local key, name = KEY.history .. ARGV[n], ARGV[n + 1] .. ' ' .. ARGV[n + 2]
  call('ZREM', key, name)
  call('HDEL', key .. ':rows', name)
end
for n = 3 * old + 4, #ARGV, 4 do
  write_history(ARGV[n], ARGV[n + 1], ARGV[n + 2], ARGV[n + 3], kept)
end
return 1
