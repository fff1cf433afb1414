-- read: the notes of some topics, without those that have expired.
-- ARGV: "read", now, then the topics. Returns topic, name and value of each, one after the other.
--
-- write: write a note, or delete it if it has no value, and delete those of its topic that have expired
-- if there are many.
-- ARGV: "write", now, topic, name, value, seconds until it expires or '' for never, the maximum number
-- of notes, a topic to answer from or '', and, of a note of limits, what claims read, or '' if it gives no
-- limits; then how long rows of history are kept in seconds or '',
-- and level, time, writer and value of each row to write.
-- Returns 1 if it was written, or was there to delete, else 0; the note of the same name in the topic
-- to answer from, or ''; and, if a topic was given, the stamp of the last change of schedules, or ''.
local what, imposed, topic, name, value, ttl, most, answer, limits_read = unpack(ARGV, 1, 9)
local now = clock(imposed)
if what == 'read' then
  local found = {}
  for n = 3, #ARGV do
    local key = KEY.notes .. ARGV[n]
    drop_expired_notes(key, now)
    local notes = call('HGETALL', key)
    for at = 1, #notes, 2 do
      found[#found + 1] = ARGV[n]
      found[#found + 1] = notes[at]
      found[#found + 1] = note_value(notes[at + 1], now)
    end
  end
  return found
end
local key, done = KEY.notes .. topic, 1
if value == '' then
  done = call('HDEL', key, name)
else
  if call('HEXISTS', key, name) == 0 and call('HLEN', key) >= tonumber(most) then
    drop_expired_notes(key, now)
    if call('HLEN', key) >= tonumber(most) then done = 0 end
  end
  if done == 1 then
    local lasts = ttl == '' and math.huge or now + tonumber(ttl)
    call('HSET', key, name, pack('>d', lasts) .. value)
    -- The last of them are deleted by the server, if nobody writes any more.
    if ttl ~= '' and imposed == '' then
      local milliseconds = math.ceil(tonumber(ttl) * 1000)
      if call('PTTL', key) < milliseconds then call('PEXPIRE', key, milliseconds) end
    end
  end
end
if topic == 'limits' and done == 1 then
  -- The next claims enter the groups in the circle again; none, if no job waits in its group.
  if limits_read == '' or call('EXISTS', limits() and KEY.lines .. name) == 1 then
    call('HDEL', limits() and KEY.entered, name)
  else
    call('HSET', KEY.entered, name, '+')
  end
  -- What claims read; see common.lua. Jobs may be left in `lines` when groups no longer take turns.
  local given, flag = limits_read ~= '' and cjson.decode(limits_read) or {}, 'k'
  if given.fair or given.most_each or given.rate_each then
    flag = 'g'
    if sub(limits().of(name) or '', 1, 1) ~= 'g' then
      -- Jobs without a group that run under the limits before now count in the group ''.
      local key, ids, untils = KEY.running .. name, {}, {}
      for n, part in ipairs(call('ZRANGE', key, 0, -1, 'WITHSCORES')) do
        local list = n % 2 == 1 and ids or untils
        list[#list + 1] = part
      end
      for n, group in ipairs(fetch(KEY.groups, ids)) do
        if not group then add(key .. '\0', untils[n], ids[n]) end
      end
      flush()
    end
  elseif call('EXISTS', limits() and KEY.lines .. name) == 1 then
    flag = 'm'
  end
  if flag ~= 'g' then call('UNLINK', KEY.circle .. name, KEY.back .. name) end
  if limits_read == '' then
    local state = call('HGET', limits() and KEY.turns, name)
    if state and unpack_bytes('>d', state) <= now then call('HDEL', KEY.turns, name) end
  end
  if limits_read == '' and flag == 'k' then
    call('HDEL', KEY.limited, name)
  else
    call('HSET', KEY.limited, name, flag .. limits_read)
  end
end
for n = 11, #ARGV, 4 do
  write_history(ARGV[n], ARGV[n + 1], ARGV[n + 2], ARGV[n + 3], ARGV[10])
end
local found, stamp = '', ''
if answer ~= '' then
  found = note_value(call('HGET', KEY.notes .. answer, name), now) or ''
  stamp = note_value(call('HGET', KEY.notes .. 'schedules', ''), now) or ''
end
return {done, found, stamp}
