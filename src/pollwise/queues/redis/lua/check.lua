-- Checks that all keys under our names are ours. Returns the layout's version, or the foreign key.
limits()
local types = {
  hash = {KEY.meta, KEY.jobs, KEY.linked, KEY.payloads, KEY.parts, KEY.heads, KEY.unique, KEY.pages,
    KEY.limited, KEY.groups, KEY.turns, KEY.notes .. 'limits', KEY.notes .. 'pauses',
    KEY.notes .. 'workers', KEY.notes .. 'orders',
    KEY.history .. '0:rows', KEY.history .. '1:rows', KEY.history .. '2:rows',
    KEY.history .. '3:rows'},
  zset = {KEY.delayed, KEY.leased, KEY.blocked, KEY.waiting, KEY.dead, KEY.done, KEY.cancelled, KEY.results,
    KEY.history .. '0', KEY.history .. '1', KEY.history .. '2', KEY.history .. '3'},
  set = {KEY.kinds},
  list = {base .. ':cuts'},
}
for wanted, keys in pairs(types) do
  for _, key in ipairs(keys) do
    local found = call('TYPE', key)['ok']
    if found ~= 'none' and found ~= wanted then return {key, found} end
  end
end
return call('HGET', KEY.meta, 'layout') or ''
