-- Deletes the episodes of all manifests up to a durable step; the manifests stay. ARGV: epoch, holder, step.
-- Returns the bytes freed.
local fenced = lost(ARGV[1], ARGV[2])
if fenced then return fenced end
local step, freed = tonumber(ARGV[3]), 0
if step > count('last_step') then
  return redis.error_reply('GAP step ' .. step .. ' has no manifest: the last is ' .. count('last_step'))
end
for durable = count('retired_step') + 1, step do
  for _, group in ipairs(cjson.decode(redis.call('HGET', manifests, durable)).groups) do
    freed = freed + forget(group)
  end
  redis.call('HSET', counters, 'retired_step', durable)
end
return freed
