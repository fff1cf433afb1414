-- Replace a note, such as that of a schedule, if its value is the expected one, and put one job, all or nothing.
-- ARGV: now, the topic, the name, 1 if there must be a note, its value, 1 if there will be one, its new value,
-- what follows the job's id in the value, seconds until it expires or '' for never, the stamp of this
-- change or '', the layout's version; then, if there is a job, how it is due (see put.lua) and its
-- tail, followed by its body if that is separate, and by its limit group if it has one.
-- Returns 1 if it was done, else 0; 1 if there is a note now, its value, and the job's id or ''.
local imposed, topic, name, expects, expected, keeps, value, tail, ttl, stamp, layout, bytes, body,
  group = unpack(ARGV, 1, 14)
local now, key, id = clock(imposed), KEY.notes .. topic, ''
local found = note_value(call('HGET', key, name), now)
if (expects == '1') ~= (found ~= nil) or (found and found ~= expected) then
  return {0, found and 1 or 0, found or '', ''}
end
if bytes then
  local how, when = unpack_bytes('>Bd', bytes)
  local job = names({tail = sub(bytes, 10), flags = 0, attempt = 0})
  if job.form % 2 == 0 then body, group = nil, body end
  job.group = job.grouped and group or ''
  job.created_at, job.run_at = now, now
  if how == 1 then job.run_at = now + when elseif how == 2 then job.run_at = math.max(when, now) end
  local number = call('HINCRBY', KEY.meta, 'last', 1)
  if number == 1 then call('HSET', KEY.meta, 'layout', layout) end
  id = name_of(number)
  job.id, job.token = id, token_at(now)
  enter(job, now)
  flush()
  if body then call('HSET', KEY.payloads, id, body) end
  if job.grouped then call('HSET', limits() and KEY.groups, id, group) end
  count_pages({number}, 1)
  value = value .. id .. tail
end
if keeps == '1' then
  local lasts = ttl == '' and math.huge or now + tonumber(ttl)
  call('HSET', key, name, pack('>d', lasts) .. value)
else
  call('HDEL', key, name)
end
if stamp ~= '' then call('HSET', key, '', pack('>d', math.huge) .. stamp) end
return {1, tonumber(keeps), value, id}
