-- A page of jobs in put order. ARGV: now, the number to start after, the last number, how many, a
-- state or '', a kind or '', the maximum number of pages to read at once, maximum bytes.
-- Returns the jobs (their number, size and bytes); the time; and the number to continue after, or
-- '' at the end.
local now, after, last, limit = clock(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local state, kind, most_pages, most_bytes = tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
local answer, count, size = {}, 0, 0

-- Add the jobs that match; returns '' if all were read, else the number of the last one.
local function show(ids)
  local found = fetch(JOBS, ids)
  for n, id in ipairs(ids) do
    if found[n] then
      local job = read(id, found[n])
      local shown = job.state
      if (shown == STATE.delayed or shown == STATE.leased) and job.since <= now then
        shown = STATE.ready
      end
      if (state == nil or state == shown) and (kind == '' or names(job).kind == kind) then
        local bytes = found[n]
        if names(job).elsewhere == 1 then
          bytes = bytes .. (call('HGET', PAYLOADS, id) or 'null')
        end
        answer[#answer + 1] = pack('>I8I4', tonumber(id), #bytes)
        answer[#answer + 1] = bytes
        count, size = count + 1, size + #bytes
        if count == limit then return '' end
        if size > most_bytes then return id end
      end
    end
  end
end

local function through_dead()
  for _ = 1, most_pages do
    local ids = call('ZRANGEBYSCORE', DEAD, '(' .. name_of(after), last, 'LIMIT', 0, PAGE)
    if #ids == 0 then return '' end
    local stopped = show(ids)
    if stopped then return stopped end
    after = tonumber(ids[#ids])
  end
  return name_of(after)
end

local function through_pages()
  local pages = {}
  for _, page in ipairs(call('HKEYS', PAGES)) do
    page = tonumber(page)
    if (page + 1) * PAGE > after + 1 and page * PAGE <= last then pages[#pages + 1] = page end
  end
  table.sort(pages)
  for n, page in ipairs(pages) do
    if n > most_pages then return name_of(page * PAGE - 1) end
    local ids = {}
    for number = math.max(page * PAGE, after + 1), math.min((page + 1) * PAGE - 1, last) do
      ids[#ids + 1] = name_of(number)
    end
    local stopped = show(ids)
    if stopped then return stopped end
  end
  return ''
end

-- Few jobs of a state among many: sort those few instead of reading page after page.
local function through_set(key)
  local numbers, ids = {}, {}
  for _, member in ipairs(call('ZRANGE', key, 0, -1)) do
    local number = tonumber(member)
    if number > after and number <= last then numbers[#numbers + 1] = number end
  end
  table.sort(numbers)
  for n, number in ipairs(numbers) do ids[n] = name_of(number) end
  return show(ids) or ''
end

local SETS = {[STATE.delayed] = DELAYED, [STATE.leased] = LEASED, [STATE.done] = DONE}
local set, go_on = SETS[state or -1], nil
if set and call('ZCARD', set) <= most_pages * PAGE then
  go_on = through_set(set)
elseif state == STATE.dead then
  go_on = through_dead()
else
  go_on = through_pages()
end
return {table.concat(answer), format('%.17g', now), go_on}
