-- The notes of some topics, without those that have expired.
-- ARGV: now, then the topics. Returns topic, name and value of each, one after the other.
local now, answer = clock(ARGV[1]), {}
for n = 2, #ARGV do
  local key = KEY.notes .. ARGV[n]
  drop_expired_notes(key, now)
  local found = call('HGETALL', key)
  for at = 1, #found, 2 do
    answer[#answer + 1] = ARGV[n]
    answer[#answer + 1] = found[at]
    answer[#answer + 1] = note_value(found[at + 1], now)
  end
end
return answer
